"""The manifest of a bundle as typed values, and their JSON. ``docs/bundle-format.md`` is the format.

Only data lives here: no files are opened. ``aot.reader`` reads a bundle from disk,
``aot.build.writer`` writes one, ``aot.loader.select`` chooses among its variants.

A service decodes this when it starts, so three things are for speed. Annotations are
evaluated here (no ``from __future__ import annotations``): msgspec would compile each of them
from its text, 1 ms for the manifest's. ``gc=False``: JSON holds no cycles, and a large manifest
would set off the garbage collector. A sha256 is held to its length alone: a pattern costs
1.6 ms for 1,500 tables, and what is no hash is the hash of nothing that is read.
"""

import hashlib
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from aot.errors import BundleError
from aot.outline import FORMAT as FORMAT
from aot.outline import FORMAT_VERSION as FORMAT_VERSION
from aot.outline import LAUNCH_ABI as LAUNCH_ABI
from aot.outline import is_as_written

# This version writes the format and launch ABI of ``aot.outline`` and reads everything from these
# two on. What a bundle says of the release that built it is for people and decides nothing.
OLDEST_FORMAT_VERSION = 1
OLDEST_LAUNCH_ABI = 1

Sha256 = Annotated[str, Meta(min_length=64, max_length=64)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]


class DTypeConst(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A constexpr whose value is a Triton dtype, named by torch's name of it."""

    dtype: str


Const = bool | int | float | str | None | DTypeConst


def same_const(a: object, b: object) -> bool:
    """Equal in value and in type: 1, 1.0 and True are three different constexprs."""
    return type(a) is type(b) and a == b


class PointerArg(
    Struct,
    frozen=True,
    gc=False,
    array_like=True,
    tag_field="kind",
    tag="pointer",
    forbid_unknown_fields=True,
):
    """A pointer parameter: Triton's ``type`` (``*fp32``), torch's ``dtype``, and the
    alignment in bytes that the variant claims (16, or 1 for any address)."""

    name: Name
    type: str
    dtype: str
    align: Literal[1, 16]


class ScalarArg(
    Struct, frozen=True, gc=False, array_like=True, tag_field="kind", tag="scalar", forbid_unknown_fields=True
):
    """A scalar parameter: Triton's ``type`` (``i64``, ``fp32``) and what the variant claims
    of its value: ``1`` (and then the cubin has no such parameter), a multiple of ``16``, ``any``."""

    name: Name
    type: str
    claim: Literal["1", "16", "any"]


class ConstexprArg(
    Struct,
    frozen=True,
    gc=False,
    array_like=True,
    tag_field="kind",
    tag="constexpr",
    forbid_unknown_fields=True,
):
    """A constexpr parameter and the value that is compiled in."""

    name: Name
    value: Const


Arg = PointerArg | ScalarArg | ConstexprArg


class Bound(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A bucket: the expression ``of`` over the scalar arguments is at most ``max``."""

    of: str
    max: int


class Options(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Triton's compile options. ``maxnreg`` None: no limit. ``fp_fusion``: a*b+c may become one fma."""

    num_warps: Positive
    num_stages: Count
    num_ctas: Positive
    fp_fusion: bool
    maxnreg: int | None = None


class Variant(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One compile: kernel × signature × constexprs × options × target.

    ``args`` holds every parameter of the kernel function in source order. ``axes`` is
    for people and filters: each axis of the spec and its value here.
    """

    kernel: Name
    target: str
    axes: dict[str, Const]
    args: tuple[Arg, ...]
    bounds: tuple[Bound, ...]
    options: Options

    @property
    def types(self) -> tuple[str, ...]:
        """The dtypes of the pointer parameters: the group that the variant is filed under."""
        return tuple(arg.dtype for arg in self.args if isinstance(arg, PointerArg))

    @property
    def launch_args(self) -> tuple[PointerArg | ScalarArg, ...]:
        """The parameters that the cubin really has, in order, without the hidden ones."""
        return tuple(
            arg
            for arg in self.args
            if isinstance(arg, PointerArg) or (isinstance(arg, ScalarArg) and arg.claim != "1")
        )


class CubinRef(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Where a cubin lies in its target's pack: ``size`` bytes from ``offset``, compressed by
    ``codec``; ``raw_size`` and ``sha256`` are those of the cubin itself."""

    sha256: Sha256
    offset: Count
    size: Count
    raw_size: Count
    codec: Literal["none", "zlib"]


class Binary(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What compiling a variant gave.

    ``params`` are (offset, size) in bytes of every kernel parameter in the parameter
    buffer, in order, the ``hidden`` pointers (global scratch, then profile scratch) last.
    ``shared`` is dynamic shared memory in bytes; ``registers`` a thread's 32-bit registers;
    ``local`` a thread's local memory (stack and spills) in bytes; ``scratch`` (size, align)
    in bytes of the global scratch that each program needs, (0, 1) for none.
    """

    symbol: Name
    cubin: CubinRef
    params: tuple[tuple[Count, Count], ...]
    hidden: Annotated[int, Meta(ge=0, le=2)]
    shared: Count
    registers: Count
    local: Count
    scratch: tuple[Count, Positive]


class Entry(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A variant and its binary: one element of a table."""

    variant: Variant
    binary: Binary


class ParamInfo(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A parameter as the kernel function declares it. ``default`` only where ``has_default``."""

    name: Name
    kind: Literal["pointer", "scalar", "constexpr"]
    has_default: bool = False
    default: Const = None


class TableRef(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The variants of one kernel, target and tuple of pointer dtypes: ``count`` entries, a
    JSON array compressed with zlib, ``size`` bytes from ``offset`` in the target's pack."""

    target: str
    types: tuple[str, ...]
    count: Annotated[int, Meta(ge=1, le=2**32)]
    offset: Count
    size: Count
    raw_size: Count
    sha256: Sha256


class Kernel(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One kernel: its parameters, the grid of its spec (expressions, or None), its tables."""

    name: Name
    params: tuple[ParamInfo, ...]
    grid: tuple[str, ...] | None
    source: str
    source_sha256: Sha256
    tables: tuple[TableRef, ...]


class Pack(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The one file that holds the tables and cubins of a target."""

    target: str
    file: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,99}$")]
    size: Count
    cubins: Count


class Missing(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A variant whose compile failed, in a bundle published with ``--keep-going``."""

    kernel: Name
    target: str
    axes: dict[str, Const]
    error: str


class Provenance(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What made the bundle: no times, no names, no paths."""

    aot: str
    triton: str
    ptxas: str
    environment: dict[str, str]
    specs: dict[str, Sha256]


class Manifest(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """``manifest.json``. ``digest`` is the sha256 of the same JSON with an empty digest."""

    format: str
    format_version: int
    launch_abi: int
    digest: str
    provenance: Provenance
    variants: Count
    packs: tuple[Pack, ...]
    kernels: tuple[Kernel, ...]
    missing: tuple[Missing, ...] = ()


class _Header(Struct, frozen=True, gc=False):
    """The part that every version of the format has, read before the rest is believed."""

    format: str
    format_version: int
    launch_abi: int


T = TypeVar("T")


def decode(data: bytes | memoryview, decoder: msgspec.json.Decoder[T], where: str) -> T:
    """Read strict JSON as the decoder's type. Raises ``BundleError`` with ``where`` and the path inside."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{where}: {error}; the file is damaged, build the bundle again") from None


def encode(value: object) -> bytes:
    """Write canonical JSON: keys sorted, no spaces. Equal values give equal bytes."""
    return msgspec.json.encode(value, order="sorted")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of ``manifest.json``: one line of canonical JSON, its digest filled in."""
    blank = msgspec.structs.replace(manifest, digest="")
    digest = hashlib.sha256(encode(blank)).hexdigest()
    return encode(msgspec.structs.replace(manifest, digest=digest)) + b"\n"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read ``manifest.json``. Raises ``BundleError`` for a wrong format, version, ABI or digest."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What a manifest of another version is wrong in is its version, not what this one misses in it.
        _check_header(decode(data, msgspec.json.Decoder(_Header), where), where)
        manifest = decode(data, msgspec.json.Decoder(Manifest), where)
    _check_header(manifest, where)
    if not is_as_written(_in_one_line(data), manifest.digest):
        # The same values may be written in another order.
        digest = hashlib.sha256(encode(msgspec.structs.replace(manifest, digest=""))).hexdigest()
        if digest != manifest.digest:
            raise BundleError(
                f"{where}: found contents of digest {digest}, wanted {manifest.digest}; "
                "the manifest was changed after it was written, build the bundle again"
            )
    return manifest


def _in_one_line(data: bytes) -> bytes:
    """The JSON without spaces, so that the canonical one can be hashed as it is."""
    return data if data.startswith(b'{"') else msgspec.json.format(data, indent=-1)


def _check_header(header: _Header | Manifest, where: str) -> None:
    if header.format != FORMAT:
        raise BundleError(f"{where}: found format {header.format!r}, wanted {FORMAT!r}; this is no bundle")
    for what, found, oldest, newest in (
        ("format_version", header.format_version, OLDEST_FORMAT_VERSION, FORMAT_VERSION),
        ("launch_abi", header.launch_abi, OLDEST_LAUNCH_ABI, LAUNCH_ABI),
    ):
        if not oldest <= found <= newest:
            mend = "upgrade aot-kernels" if found > newest else "build the bundle again"
            reads = f"{newest}" if oldest == newest else f"{oldest} to {newest}"
            raise BundleError(f"{where}: found {what} {found}, this version reads {reads}; {mend}")
