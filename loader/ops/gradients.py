"""Gradients of the reductions, in torch's own differentiable operations.

Each formula is torch's: a gradient of ``amax`` is shared among ties, ``max`` along a dimension
sends it to the index that it returned, ``prod`` is right where elements are zero. The
formulas are differentiable themselves, backward and forward.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod as product
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from aot.loader.ops import table
from aot.loader.ops.arguments import check_dims
from aot.loader.ops.table import Op

# torch.library.register_autograd makes no forward-mode derivatives (a tangent would be dropped
# without a word) and does not work inside of torch.func.grad. So this is the kernel that it would make,
# with both.


def autograd_kernel(op: Op, target: Any) -> Callable[..., Any]:
    """Return the kernel of the overload ``target`` for the dispatch key ``Autograd``."""
    function: Any = type(f"Aot{op.name.capitalize()}", (_Reduction,), {})

    def kernel(keyset: torch.DispatchKeySet, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        def below(plain: torch.Tensor) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return target.redispatch(keyset & torch._C._after_autograd_keyset, plain, *args, **kwargs)

        recorded = input.requires_grad and torch.is_grad_enabled()
        if not recorded and forward_ad._current_level < 0:
            return below(input)
        names = [argument.name for argument in target._schema.arguments[1:]]
        given = dict(zip(names, args, strict=False)) | kwargs
        with _single_level():
            return function.apply(input, op, below, given.get("dim"), given.get("keepdim", False))

    return kernel


def _single_level() -> AbstractContextManager[Any]:
    """Inside of a torch.func transform: its level is the one that this kernel records for."""
    if torch._C._are_functorch_transforms_active():
        level: AbstractContextManager[Any] = enable_single_level_autograd_function()
        return level
    return nullcontext()


class _Reduction(_SingleLevelFunction):  # type: ignore[misc]
    """One call that is recorded."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, op: Op, below: Callable[..., Any], dim: Any, keepdim: bool
    ) -> Any:
        found = below(input)
        outputs = found if isinstance(found, tuple) else (found,)
        ctx.op, ctx.formula = op, _FORMULAS[op]
        ctx.shape = input.shape
        ctx.dtype = input.dtype
        # The call below has refused what is empty; sizes may be symbols.
        ctx.dims = check_dims(op, dim, (1,) * input.dim())
        ctx.keepdim = keepdim
        ctx.result_dtype = outputs[0].dtype
        saved = [input] if ctx.formula.input else []
        if ctx.formula.output:
            saved.append(outputs[-1])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        return _match(ctx.formula.backward(ctx, grad), ctx.dtype), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> Any:
        found = ctx.formula.forward(ctx, tangent.to(ctx.result_dtype))
        return (found, None) if ctx.op.family == "index" else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """``backward`` turns the result's gradient into the input's, ``forward`` the input's tangent into
    the result's. ``input`` and ``output`` say whether they need the input, and the last output."""

    backward: Callable[[Any, torch.Tensor], torch.Tensor]
    forward: Callable[[Any, torch.Tensor], torch.Tensor]
    input: bool = False
    output: bool = False


def _match(grad: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The gradient in the dtype of the input: the real part where the input is real."""
    if grad.is_complex() and not dtype.is_complex:
        grad = grad.real
    return grad.to(dtype)


def _restored(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
    """A result, or its gradient, with the reduced dimensions back, each of size 1."""
    if not ctx.keepdim:
        for dim in ctx.dims:
            tensor = tensor.unsqueeze(dim)
    return tensor


def _total(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The sum over the reduced dimensions, of the result's shape."""
    if not ctx.dims:
        return tensor
    return tensor.sum(ctx.dims, ctx.keepdim, dtype=tensor.dtype)


def _sum_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return _restored(grad, ctx).expand(ctx.shape)


def _count(ctx: Any) -> Any:
    return product(ctx.shape[dim] for dim in ctx.dims)


def _mean_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return _sum_backward(ctx, grad) / _count(ctx)


def _mean_forward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return _total(ctx, tangent) / _count(ctx)


def _prod_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return _restored(grad, ctx) * _others(ctx).conj()


def _prod_forward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return _total(ctx, tangent * _others(ctx))


def _others(ctx: Any) -> torch.Tensor:
    """For each element the product of all others: of those before it, times those after it."""
    (input,) = ctx.saved_tensors
    factors = input.to(ctx.result_dtype)
    dim = 0
    if len(ctx.dims) == 1:
        (dim,) = ctx.dims
    else:
        factors = factors.reshape(-1)
    before = _exclusive_products(factors, dim)
    after = _exclusive_products(factors.flip(dim), dim).flip(dim)
    return (before * after).reshape(ctx.shape)


def _exclusive_products(factors: torch.Tensor, dim: int) -> torch.Tensor:
    one = torch.ones_like(factors.sum(dim, keepdim=True))
    return torch.cat((one, factors), dim).cumprod(dim).narrow(dim, 0, factors.shape[dim])


def _ties(ctx: Any) -> torch.Tensor:
    """Which elements are the extreme one; over all dimensions, NaN equals NaN as it does in torch."""
    input, result = ctx.saved_tensors
    result = _restored(result, ctx)
    ties = input == result
    if ctx.op in (table.MAX_ALL, table.MIN_ALL):
        ties = ties | (input.isnan() & result.isnan())
    return ties


def _extreme_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    ties = _ties(ctx)
    count = ties.sum(ctx.dims, keepdim=True) if ctx.dims else ties
    return _restored(grad, ctx) / count * ties


def _extreme_forward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    ties = _ties(ctx)
    return _total(ctx, tangent * ties) / _total(ctx, ties.to(tangent.dtype))


def _along_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (indices,) = ctx.saved_tensors
    zeros = grad.new_zeros(ctx.shape)
    return zeros.scatter(_dim(ctx), _restored(indices, ctx), _restored(grad, ctx))


def _along_forward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    (indices,) = ctx.saved_tensors
    found = tangent.gather(_dim(ctx), _restored(indices, ctx))
    return found.reshape(indices.shape)


def _dim(ctx: Any) -> int:
    # A tensor of no dimensions has the dimension 0 to name.
    return int(ctx.dims[0]) if ctx.dims else 0


_EXTREME = Formula(backward=_extreme_backward, forward=_extreme_forward, input=True, output=True)
_ALONG = Formula(backward=_along_backward, forward=_along_forward, output=True)
_FORMULAS = {
    table.SUM: Formula(backward=_sum_backward, forward=_total),
    table.MEAN: Formula(backward=_mean_backward, forward=_mean_forward),
    table.PROD: Formula(backward=_prod_backward, forward=_prod_forward, input=True),
    table.AMAX: _EXTREME,
    table.AMIN: _EXTREME,
    table.MAX_ALL: _EXTREME,
    table.MIN_ALL: _EXTREME,
    table.MAX_DIM: _ALONG,
    table.MIN_DIM: _ALONG,
}
