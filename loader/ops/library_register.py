"""The reductions as operators of torch: ``torch.ops.aot.sum`` and the others.

torch's dispatcher knows them with their shapes for fake tensors, gradients and batching.
They are registered when this module is imported. Results do not depend on autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from aot.errors import KernelMiss, NoBundleError
from aot.loader import fallback, stats
from aot.loader.ops import direct, table
from aot.loader.ops.gradients import autograd_kernel
from aot.loader.ops.library_shapes import batched, fake
from aot.loader.ops.table import Op

_DIMS = "Tensor input, int[1]? dim=None, bool keepdim=False"
_DIM = "Tensor input, int? dim=None, bool keepdim=False"
_DTYPE = ", *, ScalarType? dtype=None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """One operator: ``aot::<name>`` or ``aot::<name>.<overload>``, its schema and its operation."""

    op: Op
    name: str
    arguments: str
    returns: str = "Tensor"


OVERLOADS = (
    Overload(op=table.SUM, name="sum", arguments=_DIMS + _DTYPE),
    Overload(op=table.MEAN, name="mean", arguments=_DIMS + _DTYPE),
    Overload(op=table.PROD, name="prod", arguments=_DIM + _DTYPE),
    Overload(op=table.AMAX, name="amax", arguments=_DIMS),
    Overload(op=table.AMIN, name="amin", arguments=_DIMS),
    *(
        overload
        for whole, along in ((table.MAX_ALL, table.MAX_DIM), (table.MIN_ALL, table.MIN_DIM))
        for overload in (
            Overload(op=whole, name=whole.name, arguments="Tensor input, *, bool keepdim=False"),
            Overload(
                op=along,
                name=f"{along.name}.dim",
                arguments="Tensor input, int dim, bool keepdim=False",
                returns="(Tensor values, Tensor indices)",
            ),
        )
    ),
    Overload(op=table.ARGMAX, name="argmax", arguments=_DIM),
    Overload(op=table.ARGMIN, name="argmin", arguments=_DIM),
    Overload(op=table.ANY, name="any", arguments=_DIMS),
    Overload(op=table.ALL, name="all", arguments=_DIMS),
)


def _real(op: Op) -> Callable[..., Any]:
    """The implementation for tensors with numbers: on any device, so that ours is the error."""
    function = direct.FUNCTIONS[op.name]
    counters = stats.op(op.name)

    def run(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        plain = _plain(input)
        try:
            found = function(plain, *args, **kwargs)
            counters.hit()
        except (KernelMiss, NoBundleError) as error:
            found = fallback.serve_miss(op.name, (plain, *args), kwargs, error)
        return tuple(found) if isinstance(found, tuple) else found

    return run


def _plain(input: torch.Tensor) -> torch.Tensor:
    """The tensor itself: autograd, and a subclass that only ``__torch_function__`` makes, did their part."""
    if type(input) is not torch.Tensor and type(input) is not torch.nn.Parameter:
        input = input.as_subclass(torch.Tensor)
    return input.detach() if input.requires_grad or forward_ad._current_level >= 0 else input


def _target(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aot, packet), overload or "default")


def _register() -> torch.library.Library:
    library = torch.library.Library("aot", "FRAGMENT")
    for overload in OVERLOADS:
        op, qualified = overload.op, f"aot::{overload.name}"
        library.define(
            f"{overload.name}({overload.arguments}) -> {overload.returns}",
            tags=(torch.Tag.pt2_compliant_tag,),
        )
        library.impl(overload.name, _real(op), "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, fake(op), lib=library)
        target = _target(overload.name)
        # The extreme of each element of a batch is an extreme along dimensions.
        along = _target(f"a{op.name}") if op in (table.MAX_ALL, table.MIN_ALL) else target
        torch.library.register_vmap(qualified, batched(op, along), lib=library)
        if op.differentiable:
            library.impl(overload.name, autograd_kernel(op, target), "Autograd", with_keyset=True)
        else:
            library.impl(overload.name, torch.library.fallthrough_kernel, "Autograd")
    return library


# The operators live as long as this does.
_LIBRARY = _register()
TARGETS = {_target(overload.name): overload.op for overload in OVERLOADS}
"""Every operator, as torch's ``OpOverload``, and its operation."""
