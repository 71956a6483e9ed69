"""A reduction with everything worked out, called with other tensors of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct

from aot.dtypes import DTYPES
from aot.errors import LaunchError
from aot.loader.ops import outputs, workspace
from aot.loader.ops.arguments import check_gradient, check_kind
from aot.loader.ops.backend import Backend
from aot.loader.ops.execute import ReductionCall, Returns
from aot.loader.ops.plan import LaunchPlan
from aot.loader.ops.table import Op
from aot.loader.prepared import HeldCall, native_plan, signature

# Sources of pointers that are no tensors of the call: loader/csrc/native.h.
_COUNTERS, _PARTIALS, _PARTIAL_INDICES = -1, -2, -3
_INDEX_BYTES = 8


class PreparedCall(Struct, frozen=True, kw_only=True):
    """What ``aot.ops.<name>.prepare`` returns where the native launcher cannot take the call.

    ``held`` is None where a call is more than one launch (a conversion, a copy); ``direct`` then
    plans it each time, and also where a tensor has lazy signs.
    """

    op: Op
    plan: LaunchPlan
    returns: Returns
    served: Backend
    held: HeldCall | None
    direct: Callable[..., Any]
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device
    aligned: bool

    @classmethod
    def of(cls, call: ReductionCall, held: HeldCall | None, direct: Callable[..., Any]) -> PreparedCall:
        """Prepare ``call``, which is planned; ``held`` is its launch."""
        source = call.input
        return cls(
            op=call.op,
            plan=call.plan,
            returns=call.returns,
            served=call.served,
            held=held,
            direct=direct,
            dtype=source.dtype,
            shape=tuple(source.shape),
            strides=source.stride(),
            device=source.device,
            aligned=source.data_ptr() % 16 == 0,
        )

    def __repr__(self) -> str:
        return (
            f"<aot prepared call of {self.op.name} for a tensor of {self.dtype}, shape {list(self.shape)}, "
            f"strides {list(self.strides)}, on {self.device}>"
        )

    def __call__(self, input: Any, *, out: Any = None) -> Any:
        self._check(input)
        if self.held is None or input.is_conj() or input.is_neg():
            return self.direct(input, out=out)
        outs: tuple[torch.Tensor, ...] = ()
        if out is not None:
            if self.returns == "both":
                return self.direct(input, out=out)
            outputs.check_out(self.op, out, input, self.served.device_type)
            outs = (out,)
        call = ReductionCall(
            op=self.op,
            plan=self.plan,
            returns=self.returns,
            input=input,
            source=input.detach() if input.requires_grad else input,
            outs=outs,
            served=self.served,
        )
        results = call.results()
        if outs and results[0] is not outs[0]:
            # Another shape, dtype or place: what torch makes of it is decided where it is planned.
            return self.direct(input, out=out)
        arguments = call.arguments(results)
        self.held.launch(self.held.read(arguments.args[: len(self.held.call.pointers)]))
        return call.deliver(results)

    def _check(self, input: Any) -> None:
        if not isinstance(input, torch.Tensor):
            raise LaunchError(f"{self!r}: found a {type(input).__name__}, wanted a tensor")
        check_kind(self.op, "a tensor", input, self.served.device_type)
        check_gradient(self.op, input)
        for what, found, wanted in (
            ("dtype", input.dtype, self.dtype),
            ("shape", tuple(input.shape), self.shape),
            ("strides", input.stride(), self.strides),
            ("device", input.device, self.device),
        ):
            if found != wanted:
                raise LaunchError(
                    f"aot.ops.{self.op.name}: found an input of {what} {found}, the call was prepared for "
                    f"{wanted}; prepare another, or call aot.ops.{self.op.name}"
                )
        if self.aligned and input.data_ptr() % 16:
            raise LaunchError(
                f"aot.ops.{self.op.name}: found an input whose address is no multiple of 16, and the call "
                "was prepared with one that is; prepare it with this tensor"
            )


def plan_of(
    prepared: PreparedCall, call: ReductionCall, results: tuple[torch.Tensor, ...], *, to_hold: bool
) -> Any | None:
    """The native plan of a call that was launched, or None where it has to be made in Python.

    ``to_hold``: it is called by itself, and then needs ``prepared`` to fall back on.
    """
    held, plan = prepared.held, call.plan
    if held is None or (call.outs and results[0] is not call.outs[0]):
        return None
    inputs = signature(call.source, shaped=True)
    written = [signature(result, shaped=True) for result in results]
    if inputs is None or None in written:
        return None
    names = list(held.call.pointers)
    if call.returns == "value":
        source, first, partial, counter = names
        sources = {source: 0, first: 1}
        partial_indices = None
    else:
        source, values, indices, partial, partial_indices, counter = names
        sources = {source: 0, indices: len(results)}
        if call.returns == "both":
            sources[values] = 1
    more: dict[str, Any] = {}
    if plan.n_splits > 1:
        sources |= {counter: _COUNTERS, partial: _PARTIALS}
        entries = plan.n_splits * plan.n_out
        more = {"counters": plan.n_out, "partials": entries * DTYPES[plan.accumulator].itemsize}
        if partial_indices is not None:
            sources[partial_indices] = _PARTIAL_INDICES
            more["partial_index"] = entries * _INDEX_BYTES
    if call.returns == "both":
        more["wrap"] = getattr(torch.return_types, call.op.name)
    workspace.provide()
    return native_plan(
        held,
        sources,
        fallback=prepared if to_hold else None,
        inputs=(inputs,),
        outputs=tuple((found, result.dtype) for found, result in zip(written, results, strict=True)),
        grid=held.grid,
        aligned=(0,) if prepared.aligned else (),
        info=prepared if to_hold else None,
        **more,
    )
