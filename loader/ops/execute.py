"""Launching a plan: allocate what it needs, pass it to the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from aot.loader.ops import workspace
from aot.loader.ops.arguments import TORCH_DTYPES
from aot.loader.ops.backend import Backend
from aot.loader.ops.plan import LaunchPlan


def launch_values(plan: LaunchPlan, source: torch.Tensor, result: torch.Tensor, backend: Backend) -> None:
    """Reduce ``source`` (of ``plan.types.dtype``) into ``result`` (contiguous, ``plan.types.out``)."""
    if not plan.n_out:
        return
    partial, counter = _split_buffers(plan, source.device, backend)
    _launch(
        plan,
        backend,
        (_laid_out(plan, source), result, partial, counter, *plan.scalars, plan.divisor),
        OUT_DTYPE=plan.types.out,
    )


def launch_indices(
    plan: LaunchPlan,
    source: torch.Tensor,
    values: torch.Tensor | None,
    indices: torch.Tensor,
    backend: Backend,
) -> None:
    """Write the positions of the extremes to ``indices`` (int64), the extremes to ``values`` if wanted."""
    if not plan.n_out:
        return
    device = source.device
    partial, counter = _split_buffers(plan, device, backend)
    if plan.n_splits > 1:
        partial_indices = torch.empty((plan.n_splits, plan.n_out), dtype=torch.int64, device=device)
    else:
        partial_indices = workspace.untouched(device, torch.int64)
    write_values = values is not None
    if values is None:
        values = workspace.untouched(device, source.dtype)
    _launch(
        plan,
        backend,
        (
            _laid_out(plan, source),
            values,
            indices,
            partial,
            partial_indices,
            counter,
            *plan.scalars,
            int(write_values),
        ),
    )


def _laid_out(plan: LaunchPlan, source: torch.Tensor) -> torch.Tensor:
    if plan.permutation is None:
        return source
    return source.permute(plan.permutation).contiguous()


def _split_buffers(
    plan: LaunchPlan, device: torch.device, backend: Backend
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = TORCH_DTYPES[plan.accumulator]
    if plan.n_splits == 1:
        return workspace.untouched(device, dtype), workspace.untouched(device, torch.int32)
    partial = torch.empty((plan.n_splits, plan.n_out), dtype=dtype, device=device)
    return partial, workspace.counters(device, backend.stream(device), plan.n_out)


def _launch(plan: LaunchPlan, backend: Backend, args: tuple[Any, ...], **constexprs: str) -> None:
    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return plan.grid(int(meta[plan.block]))

    backend.kernel(plan.kernel)[grid](*args, OP=plan.types.code, DTYPE=plan.types.dtype, **constexprs)
