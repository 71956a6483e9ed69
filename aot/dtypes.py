"""The one table of element types: what torch, Triton and the launcher call each of them.

A dtype here is torch's: the type of a tensor's elements as a caller names it. How a
kernel sees it is a second matter (``pointer``), because Triton has no complex type and
not every fp8 type exists on every GPU.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from aot.errors import UsageError, nearest

Kind = Literal["float", "int", "uint", "bool", "complex"]
Storage = Literal["native", "bits", "auto"]


class DType(Struct, frozen=True, kw_only=True):
    """One element type.

    ``name``: torch's name. ``itemsize``: bytes of one element. ``lanes``: how many
    scalars a kernel sees for one element (2 for complex: real, imaginary interleaved).
    ``triton``: Triton's name of one lane, without the ``*``. ``native_from``: the lowest
    compute capability (major * 10 + minor) where Triton has that type on NVIDIA GPUs, or
    None where it never has. ``bits``: Triton's unsigned integer of the same width, in
    which the element can always be passed. ``scalar``: Triton's type when it is passed by
    value, None where it cannot be.
    """

    name: str
    kind: Kind
    itemsize: int
    lanes: int
    triton: str
    native_from: int | None
    bits: str
    scalar: str | None

    def __str__(self) -> str:
        return self.name

    def pointer(self, capability: int, storage: Storage = "native") -> str:
        """Return Triton's pointer type for this dtype on a GPU of ``capability``.

        ``native`` is Triton's own type and raises ``UsageError`` where the GPU has none;
        ``bits`` is always the unsigned integer of the same width; ``auto`` is ``native``
        where there is one and ``bits`` elsewhere.
        """
        if storage == "bits":
            return "*" + self.bits
        if self.native_from is not None and capability >= self.native_from:
            return "*" + self.triton
        if storage == "auto":
            return "*" + self.bits
        if self.native_from is None:
            need = "Triton has no such type on NVIDIA GPUs"
        else:
            need = f"it needs capability {self.native_from // 10}.{self.native_from % 10} or newer"
        raise UsageError(
            f"found {self.name} for a pointer on capability {capability // 10}.{capability % 10}, "
            f"but {need}; wanted another dtype or target, or 'storage: auto' with a kernel "
            f"that decodes {self.bits}"
        )


def _d(
    name: str,
    kind: Kind,
    itemsize: int,
    triton: str,
    *,
    lanes: int = 1,
    native_from: int | None = 0,
    scalar: str | None = None,
) -> DType:
    return DType(
        name=name,
        kind=kind,
        itemsize=itemsize,
        lanes=lanes,
        triton=triton,
        native_from=native_from,
        bits=f"u{itemsize * 8 // lanes}",
        scalar=scalar,
    )


_TABLE = (
    _d("float16", "float", 2, "fp16", scalar="fp16"),
    _d("bfloat16", "float", 2, "bf16", scalar="bf16"),
    _d("float32", "float", 4, "fp32", scalar="fp32"),
    _d("float64", "float", 8, "fp64", scalar="fp64"),
    _d("int8", "int", 1, "i8", scalar="i8"),
    _d("int16", "int", 2, "i16", scalar="i16"),
    _d("int32", "int", 4, "i32", scalar="i32"),
    _d("int64", "int", 8, "i64", scalar="i64"),
    _d("uint8", "uint", 1, "u8", scalar="u8"),
    _d("uint16", "uint", 2, "u16", scalar="u16"),
    _d("uint32", "uint", 4, "u32", scalar="u32"),
    _d("uint64", "uint", 8, "u64", scalar="u64"),
    _d("bool", "bool", 1, "i1", scalar="i1"),
    _d("float8_e4m3fn", "float", 1, "fp8e4nv", native_from=89),
    _d("float8_e5m2", "float", 1, "fp8e5"),
    _d("float8_e4m3fnuz", "float", 1, "fp8e4b8", native_from=None),
    _d("float8_e5m2fnuz", "float", 1, "fp8e5b16", native_from=None),
    _d("float8_e8m0fnu", "float", 1, "u8", native_from=None),
    _d("complex32", "complex", 4, "fp16", lanes=2),
    _d("complex64", "complex", 8, "fp32", lanes=2),
    _d("complex128", "complex", 16, "fp64", lanes=2),
)

DTYPES: dict[str, DType] = {d.name: d for d in _TABLE}

ALIASES: dict[str, str] = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
}


def parse_dtype(text: str) -> DType:
    """Return the dtype that ``text`` names: torch's name, or an alias of :data:`ALIASES`.

    Raises ``UsageError`` with the nearest valid name.
    """
    found = DTYPES.get(ALIASES.get(text, text))
    if found is None:
        raise UsageError(
            f"found dtype {text!r}, wanted one of {', '.join(DTYPES)}" + nearest(text, [*DTYPES, *ALIASES])
        )
    return found
