"""A kernel call with everything worked out: variant, numbers, grid and parameter bytes are fixed, only
tensors change.

:class:`HeldCall` is the reference in Python; :func:`native_plan` hands the same call to the
native launcher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from aot.errors import LaunchError
from aot.loader import native, torch_adapter
from aot.loader.arguments import Call
from aot.loader.driver import Device, Driver, get_driver
from aot.loader.launch import WARP, Grid, Prepared, grid_arguments, launch
from aot.loader.tensors import Pointer, read_pointer
from aot.manifest import Entry, PointerArg


class HeldCall(Struct, frozen=True, kw_only=True):
    """``held(*tensors)`` launches with other tensors: one for each pointer of the kernel, in its order.

    They must have the dtypes that the call was prepared with, lie on the same device, and be aligned
    where the variant claims it. ``stream`` None is torch's current one. ``count`` counts a launch from
    Python, the tallies those from native code (None where there is none). Raises ``LaunchError``.
    """

    driver: Driver
    device: Device
    prepared: Prepared
    call: Call
    grid: Grid
    stream: int | None
    count: Callable[[], None]
    kernel_tally: Any
    bundle_tally: Any

    def __repr__(self) -> str:
        variant = self.prepared.entry.variant
        pointers = ", ".join(self.call.pointers)
        return f"<aot prepared call of {variant.kernel}({pointers}), grid {self.grid}, on {self.device}>"

    @property
    def entry(self) -> Entry:
        """The variant that is launched, and its binary."""
        return self.prepared.entry

    def __call__(self, *tensors: Any) -> Entry:
        self.launch(self.read(tensors))
        return self.entry

    def read(self, tensors: Sequence[Any]) -> dict[str, Pointer]:
        """The tensors as pointers by parameter name. Raises ``LaunchError`` for one that does not fit."""
        kernel, held = self.entry.variant.kernel, self.call.pointers
        if len(tensors) != len(held):
            raise LaunchError(
                f"kernel {kernel!r}: found {len(tensors)} tensors, wanted {len(held)} ({', '.join(held)}); "
                "a prepared call takes the tensors alone"
            )
        aligned = {
            arg.name for arg in self.entry.variant.args if isinstance(arg, PointerArg) and arg.align == 16
        }
        found: dict[str, Pointer] = {}
        for (name, before), tensor in zip(held.items(), tensors, strict=True):
            where = f"kernel {kernel!r}: {name}"
            pointer = found[name] = read_pointer(where, tensor)
            if pointer.dtype != before.dtype:
                raise LaunchError(
                    f"{where}: found {pointer.dtype}, the call was prepared for {before.dtype}; "
                    "prepare another"
                )
            if pointer.device is not None and pointer.device != self.device.index:
                raise LaunchError(
                    f"{where}: found a tensor on cuda:{pointer.device}, the call was prepared for "
                    f"cuda:{self.device.index}; prepare another"
                )
            if name in aligned and pointer.address % 16:
                raise LaunchError(
                    f"{where}: found an address that is no multiple of 16, and the call was prepared with "
                    "one that is; prepare it with this tensor"
                )
        return found

    def launch(self, pointers: Mapping[str, Pointer]) -> None:
        """Queue the kernel with these pointers."""
        stream = self.stream
        if stream is None:
            torch = any(pointer.torch for pointer in pointers.values())
            stream = torch_adapter.current_stream(self.device.index) if torch else 0
        call = replace(self.call, pointers=pointers)
        # In a forked child this says so.
        get_driver()
        launch(self.driver, self.device, self.prepared, call, self.grid, stream)
        self.count()


def native_plan(
    held: HeldCall,
    sources: Mapping[str, int],
    *,
    fallback: Any,
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...] = (),
    grid: Grid | None,
    aligned: Collection[int] = (),
    **more: Any,
) -> Any | None:
    """Return the call as a plan of the native launcher, or None where it has to be made in Python.

    ``sources`` says which tensor of a call each pointer is; a pointer that is not named keeps
    the address that it was prepared with. ``inputs`` and ``outputs`` are signatures of
    :func:`signature`, ``grid`` None where each call brings its own. ``aligned`` are sources that must be
    aligned to 16 bytes even where the variant does not claim it. ``more`` goes to the plan.
    """
    module = native.with_torch()
    entry = held.entry
    if module is None or (entry.binary.scratch[0] and held.prepared.layout.hidden):
        return None
    layout, options = held.prepared.layout, entry.variant.options
    values = [
        held.call.pointers[name].address if type_ == "*" else held.call.scalars[name]
        for name, type_ in zip(layout.names, layout.types, strict=True)
    ]
    params = layout.pack(values, [0] * layout.hidden).raw[: layout.size]
    offsets = dict(zip(layout.names, layout.offsets, strict=False))
    claimed = {arg.name: arg.align == 16 for arg in entry.variant.args if isinstance(arg, PointerArg)}
    with held.driver.current(held.device):
        stream = held.stream or 0
        if held.stream is None and any(pointer.torch for pointer in held.call.pointers.values()):
            stream = torch_adapter.current_stream(held.device.index)
        function = held.driver.function(held.device, held.prepared.image, stream)

    # A table keeps thousands of plans: they must not keep all that they were made of.
    driver, variant, device = held.driver, entry.variant, held.device

    def fail(status: int) -> None:
        what = f"kernel {variant.kernel!r} of target {variant.target} on {device}"
        driver.launched(status, variant.options.num_ctas, what)

    try:
        return module.Plan(
            function=function,
            context=held.device.context,
            device=held.device.index,
            grid=grid,
            block=options.num_warps * WARP,
            shared=entry.binary.shared,
            num_ctas=options.num_ctas,
            params=params,
            offsets=layout.offsets,
            patches=tuple(
                (offsets[name], source, claimed[name] or source in aligned)
                for name, source in sources.items()
            ),
            inputs=inputs,
            outputs=outputs,
            fallback=fallback,
            fail=fail,
            kernel_tally=held.kernel_tally,
            bundle_tally=held.bundle_tally,
            stream=held.stream,
            entry=entry,
            **more,
        )
    except ValueError:
        # More parameters than the native launcher takes.
        return None


def signature(tensor: Any, *, shaped: bool) -> tuple[Any, ...] | None:
    """What a later tensor must be like: dtype, and shape and strides where ``shaped``; and how many bytes
    it reaches over. None for a tensor that the native launcher does not serve."""
    module = native.with_torch()
    view = None if module is None else module.view(tensor)
    if view is None:
        return None
    dtype, _, shape, strides = view
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    extent = (last + 1) * tensor.element_size() if math.prod(shape) else 0
    return (dtype, shape, strides, extent) if shaped else (dtype, None, None, extent)


def plan_of_call(
    held: HeldCall, names: Sequence[str], args: Mapping[str, object], own_grid: bool
) -> Any | None:
    """The plan that serves the same ``kernel[grid](…)`` again; its sources are places in ``names``."""
    tensors = [args[name] for name in held.call.pointers]
    # Without a tensor the device is the current one, which another call may find changed.
    if not tensors or any(signature(tensor, shaped=False) is None for tensor in tensors):
        return None
    base = grid_arguments(held.entry.variant, args)
    for name in held.call.pointers:
        # Every call puts its own tensors there; these would be kept alive for nothing.
        base[name] = None
    return native_plan(
        held,
        {name: names.index(name) for name in held.call.pointers},
        fallback=None,
        inputs=(),
        grid=None if own_grid else held.grid,
        meta=base,
    )


def plan_of_held(held: HeldCall, tensors: Sequence[Any]) -> Any:
    """What ``kernel.prepare`` returns: a native plan where that is possible, else ``held`` itself."""
    found = [signature(tensor, shaped=False) for tensor in tensors]
    if not found or None in found:
        return held
    sources = {name: i for i, name in enumerate(held.call.pointers)}
    plan = native_plan(held, sources, fallback=held, inputs=tuple(found), grid=held.grid, info=held)
    return held if plan is None else plan
