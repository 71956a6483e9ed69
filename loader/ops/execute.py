"""One call of a reduction: its memory, its kernel's arguments, its launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from msgspec import Struct

from aot.loader.ops import outputs, workspace
from aot.loader.ops.arguments import TORCH_DTYPES
from aot.loader.ops.backend import Backend
from aot.loader.ops.plan import LaunchPlan
from aot.loader.ops.table import Op
from aot.loader.prepared import HeldCall

Returns = Literal["value", "index", "both"]


class Arguments(Struct, frozen=True, kw_only=True):
    """All arguments of a launch in the kernel's order, tensors first; and its constexprs."""

    args: tuple[Any, ...]
    constexprs: dict[str, str]


class Launched(Struct, frozen=True, kw_only=True):
    """A launch that was made: how to make it again, and the tensors that it wrote."""

    held: HeldCall
    results: tuple[torch.Tensor, ...]


class ReductionCall(Struct, frozen=True, kw_only=True):
    """A call that was checked and planned; :meth:`run` makes it.

    ``source`` is ``input`` as the kernel reads it: converted to ``plan.types.cast``, without lazy
    signs. ``outs`` are the caller's, one for each result, or empty.
    """

    op: Op
    plan: LaunchPlan
    returns: Returns
    input: torch.Tensor
    source: torch.Tensor
    outs: tuple[torch.Tensor, ...]
    served: Backend

    def run(self) -> Any:
        """Launch and return the result: a tensor, or ``torch.return_types`` of values and indices."""
        return self.make()[0]

    def make(self) -> tuple[Any, Launched | None]:
        """As :meth:`run`; and what was launched, where the backend can hold a launch."""
        results = self.results()
        arguments = self.arguments(results)
        launched = self._launch(arguments, results) if self.plan.n_out else None
        return self.deliver(results), launched

    @property
    def straight(self) -> bool:
        """Whether the kernel reads the input as it lies and writes what is returned."""
        types, plan = self.plan.types, self.plan
        return (
            bool(plan.n_out)
            and not self.input.is_conj()
            and not self.input.is_neg()
            and bool(self.source.numel())
            and types.cast is None
            and plan.permutation is None
            and (self.returns != "value" or types.final == types.out)
        )

    def results(self) -> tuple[torch.Tensor, ...]:
        """What the kernel writes: the caller's tensors where it can, else new ones."""
        found: list[torch.Tensor] = []
        for i, dtype in enumerate(self._dtypes()):
            others = (self.source, *(out for j, out in enumerate(self.outs) if j != i))
            if self.outs and outputs.writable(self.outs[i], dtype, self.plan.shape, *others):
                found.append(self.outs[i])
            else:
                found.append(torch.empty(self.plan.shape, dtype=dtype, device=self.source.device))
        return tuple(found)

    def _dtypes(self) -> tuple[torch.dtype, ...]:
        value = TORCH_DTYPES[self.plan.types.out]
        return {"value": (value,), "index": (torch.int64,), "both": (value, torch.int64)}[self.returns]

    def _launch(self, arguments: Arguments, results: tuple[torch.Tensor, ...]) -> Launched | None:
        held = self.hold(arguments)
        if held is None:
            kernel = self.served.kernel(self.plan.kernel)
            kernel[self.grid](*arguments.args, **arguments.constexprs)
            return None
        held.launch(held.call.pointers)
        return Launched(held=held, results=results)

    def hold(self, arguments: Arguments) -> HeldCall | None:
        """The launch as a held call, or None where the backend has none."""
        hold = getattr(self.served, "hold", None)
        if hold is None:
            return None
        held: HeldCall = hold(self.plan.kernel, self.grid, arguments.args, arguments.constexprs)
        return held

    def grid(self, meta: Mapping[str, Any]) -> tuple[int, ...]:
        """The grid for the variant whose constexprs are in ``meta``."""
        return self.plan.grid(int(meta[self.plan.block]))

    def arguments(self, results: tuple[torch.Tensor, ...]) -> Arguments:
        """The arguments of the kernel, with memory for what a split launch needs."""
        plan, device = self.plan, self.source.device
        source = self.source
        if plan.permutation is not None:
            source = source.permute(plan.permutation).contiguous()
        accumulator = TORCH_DTYPES[plan.accumulator]
        if plan.n_splits > 1:
            shape = (plan.n_splits, plan.n_out)
            partial = torch.empty(shape, dtype=accumulator, device=device)
            counter = workspace.counters(device, self.served.stream(device), plan.n_out)
        else:
            # A pointer that a launch neither reads nor writes still has to be one.
            partial = workspace.untouched(device, accumulator)
            counter = workspace.untouched(device, torch.int32)
        constexprs = {"OP": plan.types.code, "DTYPE": plan.types.dtype}
        if self.returns == "value":
            constexprs["OUT_DTYPE"] = plan.types.out
            args = (source, *results, partial, counter, *plan.scalars, plan.divisor)
            return Arguments(args=args, constexprs=constexprs)
        partial_indices = (
            torch.empty(shape, dtype=torch.int64, device=device)
            if plan.n_splits > 1
            else workspace.untouched(device, torch.int64)
        )
        values = results[0] if self.returns == "both" else workspace.untouched(device, source.dtype)
        tensors = (source, values, results[-1], partial, partial_indices, counter)
        return Arguments(args=(*tensors, *plan.scalars, int(self.returns == "both")), constexprs=constexprs)

    def deliver(self, results: tuple[torch.Tensor, ...]) -> Any:
        """Turn what the kernel wrote into what the caller gets."""
        if self.outs:
            for out, result in zip(self.outs, results, strict=True):
                outputs.deliver(out, result)
            found: tuple[torch.Tensor, ...] = self.outs
        else:
            types = self.plan.types
            convert = self.returns == "value" and types.final != types.out
            found = (results[0].to(TORCH_DTYPES[types.final]),) if convert else results
        if self.returns == "both":
            return getattr(torch.return_types, self.op.name)(found)
        return found[0]
