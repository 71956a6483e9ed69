"""The record file: the kernel calls of a service, one JSON object a line.

``docs/reference/record-format.md`` is the format. ``aot.loader.record`` writes it, and
``aot spec from-record`` makes specs of it. A line holds what selection looks at and nothing
of a tensor's contents.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Union

import msgspec
from msgspec import Meta, Struct

from aot.dtypes import DTYPES
from aot.errors import UsageError
from aot.manifest import Const, DTypeConst, Name

RECORD_VERSION = 1

_MOST_FAULTS = 20
_MAX_BYTES = 4 * 2**30
# By how far each reaches: a number that one of them holds is no infinity in any later one.
FLOAT_RANGES = ("float16", "bfloat16", "float32", "float64")

Claim = Literal["1", "16", "any"]
Total = Annotated[int, Meta(ge=1)]


class PointerSeen(Struct, frozen=True, tag_field="kind", tag="pointer"):
    """A tensor: torch's name of its dtype (None: not known), and whether its address was a multiple of 16."""

    name: Name
    dtype: str | None
    align: Literal[1, 16]


class IntSeen(Struct, frozen=True, tag_field="kind", tag="int"):
    """An integer: every value seen lies in ``low`` to ``high``, and bears out the ``claim``."""

    name: Name
    low: int
    high: int
    claim: Claim


class BoolSeen(Struct, frozen=True, tag_field="kind", tag="bool"):
    """True or False, passed for a number: ``low`` and ``high`` are 0 or 1."""

    name: Name
    low: Annotated[int, Meta(ge=0, le=1)]
    high: Annotated[int, Meta(ge=0, le=1)]
    claim: Claim


class FloatSeen(Struct, frozen=True, tag_field="kind", tag="float"):
    """A float. Its value is not kept; ``fits`` is the first of ``FLOAT_RANGES`` that holds it."""

    name: Name
    fits: Literal["float16", "bfloat16", "float32", "float64"]


ScalarSeen = Union[IntSeen, BoolSeen]  # noqa: UP007 (msgspec reads it at run time on Python 3.10)
ArgSeen = Union[PointerSeen, IntSeen, BoolSeen, FloatSeen]  # noqa: UP007


class Special(Struct, frozen=True, omit_defaults=True):
    """A constexpr that JSON has no word for: a dtype, or a float that is not finite."""

    dtype: str | None = None
    number: Literal["inf", "-inf", "nan"] | None = None


class Record(Struct, frozen=True, omit_defaults=True):
    """One kind of call, and how often it was made. Keys that are not here are for later versions and ignored.

    ``by``: who saw it (``bundle``: a kernel of a bundle). ``event``: ``miss`` or ``call``.
    ``source`` and ``source_sha256``: the kernel function, as in the manifest. ``bundle``: the
    manifest's digest; ``specs``: the spec files it was built from. ``capability``: the device's,
    major * 10 + minor; ``max_shared``: the dynamic shared memory in bytes that it allows one
    block. ``shared``: bytes that the variant which only lacked shared memory needs.
    """

    aot_record: int
    by: str
    event: str
    count: Total
    kernel: Name
    capability: Annotated[int, Meta(ge=10, le=9999)]
    max_shared: Annotated[int, Meta(ge=0)]
    args: tuple[ArgSeen, ...]
    constexprs: dict[str, bool | int | float | str | Special | None]
    options: dict[str, bool | int | None]
    source: str | None = None
    source_sha256: str | None = None
    bundle: str | None = None
    specs: dict[str, str] | None = None
    shared: int | None = None

    @property
    def values(self) -> dict[str, ArgSeen]:
        """The arguments by name."""
        return {arg.name: arg for arg in self.args}

    @property
    def consts(self) -> dict[str, Const]:
        """The constexprs as selection has them."""
        return {name: read_const(value) for name, value in self.constexprs.items()}

    def __str__(self) -> str:
        parts: list[str] = []
        for arg in self.args:
            if isinstance(arg, PointerSeen):
                parts.append(
                    f"{arg.name}: {arg.dtype}{'' if arg.align == 16 else ' not aligned to 16 bytes'}"
                )
            elif isinstance(arg, FloatSeen):
                parts.append(f"{arg.name}: float")
            else:
                span = str(arg.low) if arg.low == arg.high else f"{arg.low} to {arg.high}"
                parts.append(f"{arg.name} = {span}")
        parts += [
            f"{name} = {value.dtype if isinstance(value, DTypeConst) else repr(value)}"
            for name, value in self.consts.items()
        ]
        parts += [f"{name} = {value}" for name, value in self.options.items()]
        device = f"{self.capability // 10}.{self.capability % 10}"
        return f"{self.kernel}({', '.join(parts)}) on {device}"


class _Header(Struct, frozen=True):
    aot_record: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile:
    """``records``: each kind of call once, counts summed. ``notes``: a sentence for each line passed over."""

    records: tuple[Record, ...]
    notes: tuple[str, ...]


def write_const(value: Const) -> bool | int | float | str | Special | None:
    """A constexpr as a line has it."""
    if isinstance(value, DTypeConst):
        return Special(dtype=value.dtype)
    if isinstance(value, float) and not math.isfinite(value):
        return Special(number="nan" if value != value else "inf" if value > 0 else "-inf")
    # Half of a surrogate pair is no text, and no spec can hold it.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def read_const(value: bool | int | float | str | Special | None) -> Const:
    """What :func:`write_const` was given."""
    if not isinstance(value, Special):
        return value
    return float(value.number) if value.number is not None else DTypeConst(value.dtype or "")


def encode_record(record: Record) -> bytes:
    """One line, its end included."""
    return msgspec.json.encode(record) + b"\n"


def read_records(path: str | os.PathLike[str], *, skip_bad: bool = False) -> RecordFile:
    """Read a record file.

    A last line without its end is passed over and noted: its writer was stopped, or is
    writing. Any other line that is no record raises ``UsageError``, one sentence a line with its
    number; with ``skip_bad`` it is passed over and noted. Lines of one kind are one record.
    """
    file = os.fspath(path)
    lines = _lines(file)
    found: dict[object, Record] = {}
    faults: list[str] = []
    notes: list[str] = []
    for number, line in enumerate(lines, 1):
        where = f"{file}:{number}"
        if number == len(lines) and not line.endswith(b"\n"):
            notes.append(f"{where}: passed over, the line was cut off")
            continue
        if not line.strip():
            continue
        try:
            record = _record(line)
        except _NoRecord as fault:
            (notes if skip_bad else faults).append(
                f"{where}: {fault}" + ("; passed over" if skip_bad else "")
            )
            continue
        key = kind_of(record)
        found[key] = merged(found[key], record) if key in found else record
    if faults:
        more = len(faults) - _MOST_FAULTS
        faults = [*faults[:_MOST_FAULTS], *([f"… and {more} more lines of {file}"] if more > 0 else [])]
        raise UsageError("\n".join([*faults, "delete these lines, or pass --skip-bad to go on without them"]))
    return RecordFile(records=tuple(found.values()), notes=tuple(notes))


class _NoRecord(Exception):
    """The message says what the line is."""


def _lines(file: str) -> list[bytes]:
    if os.path.exists(file) and not os.path.isfile(file):
        # Reading a pipe or a device may never end.
        raise UsageError(f"{file}: found no regular file, wanted a record file")
    try:
        with open(file, "rb") as stream:
            if os.fstat(stream.fileno()).st_size > _MAX_BYTES:
                raise UsageError(f"{file}: found more than {_MAX_BYTES} bytes, wanted a record file")
            return _split(stream.read())
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise UsageError(f"{file}: found {what}, wanted a record file (AOT_RECORD writes one)") from None


def _split(data: bytes) -> list[bytes]:
    # bytes.splitlines ends a line at a bare carriage return too.
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _record(line: bytes) -> Record:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _NoRecord(f"found no record ({error}), wanted a line that AOT_RECORD wrote") from None
    if header.aot_record != RECORD_VERSION:
        mend = "upgrade aot-kernels" if header.aot_record > RECORD_VERSION else "record again"
        raise _NoRecord(
            f"found a record of version {header.aot_record}, this version reads {RECORD_VERSION}; {mend}"
        )
    try:
        record = msgspec.json.decode(line, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _NoRecord(f"found a damaged record ({error})") from None
    return _checked(record)


def _checked(record: Record) -> Record:
    names = [arg.name for arg in record.args]
    if len(set(names)) != len(names):
        raise _NoRecord("found a damaged record (an argument is there twice)")
    for arg in record.args:
        if isinstance(arg, PointerSeen) and arg.dtype is not None and arg.dtype not in DTYPES:
            raise _NoRecord(f"found the dtype {arg.dtype!r} for {arg.name}, which this version does not know")
        if isinstance(arg, (IntSeen, BoolSeen)) and arg.low > arg.high:
            raise _NoRecord(f"found a damaged record ({arg.name}: low is over high)")
    for name, value in record.constexprs.items():
        if isinstance(value, Special) and value.number is None and value.dtype not in DTYPES:
            raise _NoRecord(f"found the dtype {value.dtype!r} for {name}, which this version does not know")
    return record


def kind_of(record: Record) -> object:
    """What makes two lines the same kind of call: all but counts, ranges and which bundle was asked."""
    return (
        record.by,
        record.event,
        record.kernel,
        record.source_sha256,
        record.capability,
        record.max_shared,
        tuple(_class_of(arg) for arg in record.args),
        tuple(sorted((name, type(value), str(value)) for name, value in record.constexprs.items())),
        tuple(
            sorted((name, type(value), value) for name, value in record.options.items() if value is not None)
        ),
    )


def _class_of(arg: ArgSeen) -> object:
    if isinstance(arg, (IntSeen, BoolSeen)):
        return type(arg), arg.name, arg.claim, extent_class(arg.low)
    return arg


def extent_class(value: int) -> tuple[bool, int]:
    """The extent class of an integer: its sign, and k where 2**(k-1) < size <= 2**k."""
    return value < 0, (abs(value) - 1).bit_length() if value else -1


def merged(a: Record, b: Record) -> Record:
    """Two records of one kind as one."""
    return msgspec.structs.replace(
        b,
        count=a.count + b.count,
        args=tuple(_wider(x, y) for x, y in zip(a.args, b.args, strict=True)),
        shared=b.shared if b.shared is not None else a.shared,
    )


def _wider(a: ArgSeen, b: ArgSeen) -> ArgSeen:
    if isinstance(a, (IntSeen, BoolSeen)) and isinstance(b, (IntSeen, BoolSeen)):
        return msgspec.structs.replace(b, low=min(a.low, b.low), high=max(a.high, b.high))
    return b


def claim_of(value: int) -> Claim:
    """The strictest claim that an integer bears out."""
    return "1" if value == 1 else "16" if value % 16 == 0 else "any"


def float_range(value: float) -> Literal["float16", "bfloat16", "float32", "float64"]:
    """The first of ``FLOAT_RANGES`` in which ``value`` is no infinity unless it is one."""
    size = abs(value)
    # Half a step over the largest number is where rounding to nearest gives infinity.
    if not math.isfinite(value) or size < 65520:
        return "float16"
    if size < 2.0**128 - 2.0**119:
        return "bfloat16"
    return "float32" if size < 2.0**128 - 2.0**103 else "float64"


def with_ranges(record: Record, count: int, low: Sequence[int], high: Sequence[int]) -> Record:
    """``record`` for ``count`` calls, with the range of each integer and bool, in order."""
    bounds = iter(zip(low, high, strict=True))
    args: list[ArgSeen] = []
    for arg in record.args:
        if isinstance(arg, (IntSeen, BoolSeen)):
            least, most = next(bounds)
            args.append(msgspec.structs.replace(arg, low=least, high=most))
        else:
            args.append(arg)
    return msgspec.structs.replace(record, count=count, args=tuple(args))


def total(records: Iterable[Record]) -> int:
    """How many calls the records stand for."""
    return sum(record.count for record in records)


def by_kernel(records: Iterable[Record]) -> Mapping[str, list[Record]]:
    """Records by the kernel's name, in order."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.kernel, []).append(record)
    return found
