"""The way of a call through torch's dispatcher: when it is needed, and the call itself.

A launch from Python is invisible to autograd, ``torch.compile``, fake tensors, subclasses and the
like. For these every function of ``aot.ops`` is an operator as well (``library_register``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from aot.errors import KernelMiss, NoBundleError
from aot.loader import fallback
from aot.loader.ops import direct, library_register, library_sharding, table
from aot.loader.ops.arguments import check_dims, check_dtype, check_flag
from aot.loader.ops.table import Op

library_sharding.register_sharding(library_register.TARGETS)


def needed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a launch with these arguments would be wrong, or unseen by what must see it.

    It would with a gradient or a tangent to compute, inside of ``torch.func`` transforms, with
    fake, meta and subclass tensors, under a ``TorchDispatchMode``, and while torch compiles or traces.
    """
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    ):
        return True
    input: Any = args[0] if args else kwargs.get("input")
    if type(input) is not torch.Tensor and type(input) is not torch.nn.Parameter:
        return isinstance(input, torch.Tensor)
    if input.is_meta or (input.requires_grad and torch.is_grad_enabled()):
        return True
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(input))


def call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Send ``aot.ops.<name>(*args, **kwargs)`` through ``torch.ops.aot``.

    With ``out=`` it is the direct path's call, as it is for autograd in torch: an input that
    requires grad is refused there, and so is a tensor that has no memory.
    """
    if kwargs.get("out") is not None:
        try:
            return direct.FUNCTIONS[name](*args, **kwargs)
        except (KernelMiss, NoBundleError) as error:
            return fallback.serve_miss(name, args, kwargs, error)
    if not torch.compiler.is_compiling():
        library_sharding.register_sharding(library_register.TARGETS)
    return _SENDERS[name](*args, **kwargs)


def _check(op: Op, input: Any, dim: Any, keepdim: Any) -> None:
    """Raise ``TypeError`` and the like in the words of the direct path, not in those of a schema."""
    check_flag(op, keepdim)
    if isinstance(input, torch.Tensor):
        check_dims(op, dim, (1,) * input.dim())


def _with_dtype(op: Op) -> Callable[..., Any]:
    target = getattr(torch.ops.aot, op.name).default

    def send(
        input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None, out: None = None
    ) -> Any:
        _check(op, input, dim, keepdim)
        return target(input, dim, keepdim, dtype=check_dtype(op, dtype))

    return send


def _without_dtype(op: Op) -> Callable[..., Any]:
    target = getattr(torch.ops.aot, op.name).default

    def send(input: Any, dim: Any = None, keepdim: Any = False, *, out: None = None) -> Any:
        _check(op, input, dim, keepdim)
        return target(input, dim, keepdim)

    return send


def _extreme(whole: Op, along: Op) -> Callable[..., Any]:
    packet = getattr(torch.ops.aot, whole.name)
    all_target, dim_target = packet.default, packet.dim
    names = getattr(torch.return_types, whole.name)

    def send(input: Any, dim: Any = None, keepdim: Any = False, *, out: None = None) -> Any:
        if dim is None:
            _check(whole, input, None, keepdim)
            return all_target(input, keepdim=keepdim)
        _check(along, input, dim, keepdim)
        return names(dim_target(input, dim, keepdim))

    return send


_SENDERS: dict[str, Callable[..., Any]] = {
    "sum": _with_dtype(table.SUM),
    "mean": _with_dtype(table.MEAN),
    "prod": _with_dtype(table.PROD),
    "amax": _without_dtype(table.AMAX),
    "amin": _without_dtype(table.AMIN),
    "max": _extreme(table.MAX_ALL, table.MAX_DIM),
    "min": _extreme(table.MIN_ALL, table.MIN_DIM),
    "argmax": _without_dtype(table.ARGMAX),
    "argmin": _without_dtype(table.ARGMIN),
    "any": _without_dtype(table.ANY),
    "all": _without_dtype(table.ALL),
}
