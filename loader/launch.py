"""One launch from Python: parameters packed, grid checked, scratch lent, the kernel queued on a stream."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct

from aot.errors import LaunchError
from aot.expr import ExprError
from aot.loader import torch_adapter
from aot.loader.arguments import Call
from aot.loader.driver import Device, Driver, Image
from aot.loader.packing import Layout
from aot.loader.select import extents, parsed
from aot.manifest import ConstexprArg, DTypeConst, Entry, Kernel, Variant
from aot.target import MAX_GRID

Grid = tuple[int, int, int]
GridLike = Sequence[int] | Callable[[Mapping[str, object]], Sequence[int]]

WARP = 32
# torch and the driver align what they allocate at least this well.
_ALLOCATION_ALIGN = 256


class Prepared(Struct, frozen=True, kw_only=True):
    """A variant with everything worked out that no call changes."""

    entry: Entry
    layout: Layout
    image: Image


def launch(
    driver: Driver,
    device: Device,
    prepared: Prepared,
    call: Call,
    grid: Grid,
    stream: int,
) -> None:
    """Queue a kernel on ``stream`` of ``device``, with the device's context current meanwhile."""
    variant, binary, layout = prepared.entry.variant, prepared.entry.binary, prepared.layout
    values = [
        call.pointers[name].address if type_ == "*" else call.scalars[name]
        for name, type_ in zip(layout.names, layout.types, strict=True)
    ]
    options = variant.options
    what = f"kernel {variant.kernel!r} of target {variant.target} on {device}"
    with driver.current(device):
        function = driver.function(device, prepared.image, stream)
        with _scratch(driver, device, prepared, call, grid, stream, what) as hidden:
            buffer = layout.pack(values, hidden)
            params = ctypes.addressof(buffer) + layout.size
            driver.launch(
                function,
                grid,
                options.num_warps * WARP,
                binary.shared,
                stream,
                params,
                options.num_ctas,
                what,
            )


@contextmanager
def _scratch(
    driver: Driver, device: Device, prepared: Prepared, call: Call, grid: Grid, stream: int, what: str
) -> Iterator[list[int]]:
    """Lend the global scratch that each program needs; the profile's pointer is null, as in Triton."""
    layout = prepared.layout
    each, align = prepared.entry.binary.scratch
    hidden = [0] * layout.hidden
    if each == 0 or layout.hidden == 0:
        yield hidden
        return
    spare = align if align > _ALLOCATION_ALIGN else 0
    size = each * grid[0] * grid[1] * grid[2] * prepared.entry.variant.options.num_ctas + spare
    if any(pointer.torch for pointer in call.pointers.values()):
        # torch keeps the memory from others until the stream has passed this launch.
        memory = torch_adapter.allocate(size, device.index, stream)
        hidden[0] = _aligned(memory.data_ptr(), align)
        yield hidden
    else:
        with driver.memory(size, stream, what) as address:
            hidden[0] = _aligned(address, align)
            yield hidden


def _aligned(address: int, align: int) -> int:
    return -(-address // align) * align


def grid_of_spec(kernel: Kernel, variant: Variant, call: Call) -> Sequence[int]:
    """Evaluate the grid that the kernel's spec gives. Raises ``LaunchError`` where it gives none."""
    if kernel.grid is None:
        raise LaunchError(
            f"kernel {kernel.name!r} has no grid in its spec; call bundle.kernel({kernel.name!r})[grid](…)"
        )
    names: dict[str, int] = {f"${k}": int(v) for k, v in variant.axes.items() if isinstance(v, int)}
    for arg in variant.args:
        if isinstance(arg, ConstexprArg) and isinstance(arg.value, int):
            names[arg.name] = int(arg.value)
    names.update(extents(call.scalars))
    try:
        return [parsed(text).evaluate(names) for text in kernel.grid]
    except ExprError as error:
        raise LaunchError(f"kernel {kernel.name!r}: its spec's grid has no value: {error}") from None


def grid_of_call(grid: GridLike, variant: Variant, call: Call) -> Sequence[int]:
    """The caller's grid; a callable gets every argument by name, with the constexprs of the variant."""
    return grid(grid_arguments(variant, call.given)) if callable(grid) else grid


def grid_arguments(variant: Variant, given: Mapping[str, object]) -> dict[str, object]:
    """What a callable grid gets: the arguments with their defaults, and the variant's constexprs."""
    found = dict(given)
    for arg in variant.args:
        if isinstance(arg, ConstexprArg) and arg.name not in found:
            found[arg.name] = arg.value.dtype if isinstance(arg.value, DTypeConst) else arg.value
    return found


def check_grid(kernel: str, grid: object, num_ctas: int = 1) -> Grid:
    """Return one to three sizes as three. Raises ``LaunchError`` that names the axis and its limit.

    ``num_ctas`` blocks of a program lie along x and count against its limit.
    """
    if not isinstance(grid, tuple | list):
        raise LaunchError(
            f"kernel {kernel!r}: found grid {grid!r}, wanted a tuple or list of 1 to 3 integers, such as (n,)"
        )
    if not 1 <= len(grid) <= 3:
        raise LaunchError(f"kernel {kernel!r}: found a grid of {len(grid)} axes, wanted 1 to 3")
    sizes = [1, 1, 1]
    for i, (axis, found, limit) in enumerate(zip("xyz", grid, MAX_GRID, strict=False)):
        try:
            size = operator.index(found)
        except TypeError:
            raise LaunchError(
                f"kernel {kernel!r}: found grid {axis} = {found!r}, wanted an integer"
            ) from None
        if size < 0:
            raise LaunchError(f"kernel {kernel!r}: found grid {axis} = {size}, wanted 0 or more")
        most = limit // num_ctas if axis == "x" else limit
        if size > most:
            mend = "let each program do more" if axis == "x" else "put the longest axis on x"
            raise LaunchError(f"kernel {kernel!r}: found grid {axis} = {size}, wanted at most {most}; {mend}")
        sizes[i] = size
    return (sizes[0], sizes[1], sizes[2])
