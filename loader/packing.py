"""Python values to the bytes that a kernel reads: every scalar by the kernel's type, never by Python's.

A parameter buffer holds the parameters at the offsets that the cubin itself records,
followed by the array of their addresses that ``cuLaunchKernel`` takes.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence

from msgspec import Struct

from aot.dtypes import DTYPES
from aot.errors import BundleError, LaunchError
from aot.manifest import Entry, PointerArg

Number = bool | int | float

# Triton's scalar types: bytes, struct code, smallest and largest integer.
_INTS: dict[str, tuple[int, str, int, int]] = {
    "i1": (1, "B", 0, 1),
    "i8": (1, "b", -(2**7), 2**7 - 1),
    "i16": (2, "h", -(2**15), 2**15 - 1),
    "i32": (4, "i", -(2**31), 2**31 - 1),
    "i64": (8, "q", -(2**63), 2**63 - 1),
    "u8": (1, "B", 0, 2**8 - 1),
    "u16": (2, "H", 0, 2**16 - 1),
    "u32": (4, "I", 0, 2**32 - 1),
    "u64": (8, "Q", 0, 2**64 - 1),
}
# bfloat16 has no struct code: it is rounded here and travels as 16 bits.
_FLOATS: dict[str, tuple[int, str]] = {"fp16": (2, "e"), "bf16": (2, "H"), "fp32": (4, "f"), "fp64": (8, "d")}

# What people call the type: torch's name.
_NAMES = {d.scalar: d.name for d in DTYPES.values() if d.scalar is not None}


def scalar_fault(name: str, type_: str, value: Number) -> str | None:
    """Say why ``value`` cannot be passed as Triton's ``type_``, or None where it can.

    A bool or an int may stand for a float, a bool for an int; a float never for an int.
    Infinities and NaN are floats; a finite value that would become infinite is refused.
    """
    if type_ in _INTS:
        if isinstance(value, float):
            return f"{name} = {value!r} is a float, {name} is {_NAMES[type_]}"
        _, _, low, high = _INTS[type_]
        return None if low <= value <= high else f"{name} = {value} does not fit {_NAMES[type_]}"
    try:
        _round(type_, value)
    except OverflowError:
        return f"{name} = {value!r} does not fit {_NAMES[type_]}"
    return None


def pack_scalar(type_: str, value: Number, name: str = "value") -> bytes:
    """Return ``value`` as the little-endian bytes of Triton's ``type_``, rounded to nearest even once.

    An int passed for a float is first the nearest double, as in Triton's own launcher.
    Raises ``LaunchError`` where it does not fit.
    """
    fault = scalar_fault(name, type_, value)
    if fault:
        raise LaunchError(fault)
    if type_ in _INTS:
        return struct.pack("<" + _INTS[type_][1], value)
    return _round(type_, value)


def _round(type_: str, value: Number) -> bytes:
    if type_ == "bf16":
        return struct.pack("<H", bfloat16_bits(float(value)))
    # The standard library rounds from the double, half to even, and refuses to overflow.
    return struct.pack("<" + _FLOATS[type_][1], float(value))


def bfloat16_bits(value: float) -> int:
    """Return the 16 bits of the bfloat16 nearest to ``value``, half to even.

    Rounds from the double at once: by way of float32 a value can be rounded twice, the
    second time from a tie that was not one. Raises ``OverflowError`` where a finite value
    rounds to infinity.
    """
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return sign | 0x7FC0
    if math.isinf(value):
        return sign | 0x7F80
    if value == 0:
        return sign
    mantissa, exponent = math.frexp(abs(value))
    # The weight of the last bit: 8 bits of mantissa, or 2**-133 among the subnormals.
    last = max(exponent - 8, -133)
    bits = ((last + 133) << 7) + round(math.ldexp(mantissa, exponent - last))
    if bits >= 0x7F80:
        raise OverflowError(f"{value!r} does not fit bfloat16")
    return sign | bits


def scalar_size(type_: str) -> int:
    """Bytes of Triton's scalar ``type_``."""
    return _INTS[type_][0] if type_ in _INTS else _FLOATS[type_][0]


class Layout(Struct, frozen=True, kw_only=True):
    """How one variant's parameters lie in memory.

    ``names`` and ``types`` (``*`` for a pointer) are those of the visible parameters in order,
    ``offsets`` of all of them, ``hidden`` how many scratch pointers end the list, ``size`` the
    bytes before the array of addresses.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    offsets: tuple[int, ...]
    hidden: int
    size: int
    format: struct.Struct

    @classmethod
    def of(cls, entry: Entry, where: str) -> Layout:
        """Work out the layout and compare it with the cubin's own records.

        Raises ``BundleError`` where number, size or order of the parameters differ: a launch
        would read the wrong bytes.
        """
        args = entry.variant.launch_args
        types = tuple("*" if isinstance(arg, PointerArg) else arg.type for arg in args)
        hidden = entry.binary.hidden
        sizes = [8 if t == "*" else _known_size(t, where) for t in types] + [8] * hidden
        recorded = [size for _, size in entry.binary.params]
        if sizes != recorded:
            raise BundleError(
                f"{where}: found parameters of {_listed(recorded)} bytes in the cubin, wanted "
                f"{_listed(sizes)}; the bundle is inconsistent, build it again"
            )
        codes = []
        end = 0
        for (offset, size), type_ in zip(entry.binary.params, [*types, *["*"] * hidden], strict=True):
            if offset < end:
                raise BundleError(
                    f"{where}: found a parameter at offset {offset} inside the one before it, which ends at "
                    f"{end}; the bundle is inconsistent, build it again"
                )
            codes.append(f"{offset - end}x{_code(type_)}")
            end = offset + size
        padding = -end % 8
        return cls(
            names=tuple(arg.name for arg in args),
            types=types,
            offsets=tuple(offset for offset, _ in entry.binary.params),
            hidden=hidden,
            size=end + padding,
            format=struct.Struct(f"<{''.join(codes)}{padding}x{len(recorded)}Q"),
        )

    def pack(self, values: Sequence[Number], scratch: Sequence[int]) -> ctypes.Array[ctypes.c_char]:
        """Return one buffer: the parameters, then at ``size`` the array of their addresses.

        ``values`` are pointers' addresses and scalars in the order of ``names``, each already
        checked by ``scalar_fault``; ``scratch`` the hidden pointers. The driver copies the
        parameters during the launch, so the buffer is needed no longer than that.
        """
        buffer = ctypes.create_string_buffer(self.format.size)
        base = ctypes.addressof(buffer)
        encoded = [
            bfloat16_bits(float(value)) if type_ == "bf16" else value
            for type_, value in zip(self.types, values, strict=True)
        ]
        self.format.pack_into(buffer, 0, *encoded, *scratch, *[base + offset for offset in self.offsets])
        return buffer


def _code(type_: str) -> str:
    if type_ == "*":
        return "Q"
    return _INTS[type_][1] if type_ in _INTS else _FLOATS[type_][1]


def _known_size(type_: str, where: str) -> int:
    if type_ not in _INTS and type_ not in _FLOATS:
        raise BundleError(
            f"{where}: found a scalar of type {type_!r}, wanted one of {', '.join([*_INTS, *_FLOATS])}"
        )
    return scalar_size(type_)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) or "no"
