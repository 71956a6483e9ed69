"""What a cubin says of itself: parameters, threads, registers, local memory.

The section ``.nv.info.<symbol>`` holds a list of attributes, each a format byte, an
attribute byte and a 16-bit value or size; attribute 0x17 (EIATTR_KPARAM_INFO) is a
record ``<IHHI``: index, ordinal, offset, flags, where flags >> 18 is the size in bytes,
and 0x10 (EIATTR_REQNTID) the block's required threads along x, y and z.
``.nv.info`` has attributes of all functions: 0x2f (EIATTR_REGCOUNT) and 0x11
(EIATTR_FRAME_SIZE) are pairs of symbol index and value. The names are those that
``cuobjdump -elf`` prints.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from msgspec import Struct

from aot.dtypes import DTYPES
from aot.errors import BuildError
from aot.manifest import Binary, PointerArg, Variant

_FORMAT_SIZED = 4
_KPARAM_INFO = 0x17
_REGCOUNT = 0x2F
_FRAME_SIZE = 0x11
_REQNTID = 0x10
_WARP = 32

_SIZES = {d.scalar: d.itemsize for d in DTYPES.values() if d.scalar is not None}


class CubinInfo(Struct, frozen=True, kw_only=True):
    """``params``: (offset, size) in bytes, in order. ``threads`` of a block, 0 where the cubin does not
    say. ``registers`` and ``local`` are a thread's."""

    params: tuple[tuple[int, int], ...]
    threads: int
    registers: int
    local: int


def read_cubin(cubin: bytes, symbol: str) -> CubinInfo:
    """Read what a cubin records of the kernel ``symbol``. Raises ``BuildError``."""
    try:
        elf = ELFFile(io.BytesIO(cubin))
        info = elf.get_section_by_name(f".nv.info.{symbol}")
        general = elf.get_section_by_name(".nv.info")
        symbols = elf.get_section_by_name(".symtab")
        if info is None or general is None or symbols is None:
            raise BuildError(f"found no .nv.info.{symbol} in the cubin, wanted the kernel {symbol}")
        params: dict[int, tuple[int, int]] = {}
        threads = 0
        for attribute, value in _attributes(info.data()):
            if attribute == _KPARAM_INFO:
                _, ordinal, offset, flags = struct.unpack("<IHHI", value)
                params[ordinal] = (offset, flags >> 18)
            elif attribute == _REQNTID:
                x, y, z = struct.unpack("<III", value)
                threads = x * y * z
        numbers = {_REGCOUNT: 0, _FRAME_SIZE: 0}
        for attribute, value in _attributes(general.data()):
            if attribute in numbers:
                index, number = struct.unpack("<II", value)
                if symbols.get_symbol(index).name == symbol:
                    numbers[attribute] = number
    except (ELFError, struct.error, LookupError, ValueError, OverflowError, AttributeError) as error:
        raise BuildError(f"the cubin is not one that can be read: {error}") from None
    if sorted(params) != list(range(len(params))):
        raise BuildError(f"found parameter ordinals {sorted(params)} in the cubin, wanted them from 0 on")
    return CubinInfo(
        params=tuple(params[ordinal] for ordinal in range(len(params))),
        threads=threads,
        registers=numbers[_REGCOUNT],
        local=numbers[_FRAME_SIZE],
    )


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == _FORMAT_SIZED:
            yield attribute, data[position : position + value]
            position += value


def expected_params(variant: Variant) -> tuple[int, ...]:
    """Sizes in bytes of the parameters that the cubin of ``variant`` must have, without the hidden ones."""
    return tuple(8 if isinstance(arg, PointerArg) else _SIZES[arg.type] for arg in variant.launch_args)


def check_abi(variant: Variant, info: CubinInfo) -> int:
    """Compare a cubin's parameters and threads with the variant; return the number of hidden pointers.

    Raises ``BuildError`` where they differ: launching would pass wrong arguments, or fail.
    """
    threads = variant.options.num_warps * _WARP
    if info.threads != threads:
        raise BuildError(
            f"found blocks of {info.threads} threads in the cubin, wanted {threads} "
            f"({variant.options.num_warps} warps)"
        )
    wanted = expected_params(variant)
    found = tuple(size for _, size in info.params)
    hidden = found[len(wanted) :]
    if found[: len(wanted)] != wanted or hidden not in ((), (8,), (8, 8)):
        raise BuildError(
            f"found parameters of {list(found)} bytes in the cubin, wanted {list(wanted)} and at "
            f"most two hidden pointers, for ({', '.join(f'{a.name}: {a.type}' for a in variant.launch_args)})"
        )
    return len(hidden)


def check_binary(variant: Variant, binary: Binary, cubin: bytes) -> None:
    """Compare all that a manifest says of a binary with its cubin. Raises ``BuildError``."""
    info = read_cubin(cubin, binary.symbol)
    hidden = check_abi(variant, info)
    for what, found, wanted in (
        ("parameters", info.params, binary.params),
        ("hidden pointers", hidden, binary.hidden),
        ("registers", info.registers, binary.registers),
        ("local memory", info.local, binary.local),
    ):
        if found != wanted:
            raise BuildError(f"found {what} {found} in the cubin, the manifest says {wanted}")
