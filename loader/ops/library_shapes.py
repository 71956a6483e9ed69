"""What a reduction returns, without its numbers: for fake and meta tensors, and batched ones.

The rules are those of the real functions, from the same code: dtypes from the table,
dimensions and errors from the checks. Sizes may be symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aot.dtypes import DTYPES
from aot.loader.ops import reductions, wording
from aot.loader.ops.arguments import TORCH_DTYPES, check_dims, check_dtype, dtype_name
from aot.loader.ops.table import Op


def fake(op: Op) -> Callable[..., Any]:
    """Return the fake implementation of an overload of ``op``."""

    def values(input: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        shape, result = _result(op, input, dim, keepdim, dtype)
        return input.new_empty(shape, dtype=result)

    def positions(input: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        shape, _ = _result(op, input, dim, keepdim)
        return input.new_empty(shape, dtype=torch.int64)

    def extremes(input: torch.Tensor, dim: Any, keepdim: bool = False) -> Any:
        shape, result = _result(op, input, dim, keepdim)
        return input.new_empty(shape, dtype=result), input.new_empty(shape, dtype=torch.int64)

    if op.family != "index":
        return values
    return positions if op.name.startswith("arg") else extremes


def _result(
    op: Op, input: torch.Tensor, dim: Any, keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[list[Any], torch.dtype]:
    """The shape of the result, and its dtype. Checks in the order of the real functions."""
    name = dtype_name(input.dtype)
    if name not in DTYPES:
        raise NotImplementedError(
            f"{wording.not_implemented(op.name, name)}; wanted one of {', '.join(TORCH_DTYPES)}"
        )
    result = reductions._result_name(op, name, check_dtype(op, dtype), None)
    reduced = check_dims(op, dim, known_sizes(input))
    if op.family in ("extremum", "index"):
        reductions._refuse_complex(op, name)
    return _sizes(input.shape, reduced, keepdim), TORCH_DTYPES[result]


def _sizes(shape: Sequence[Any], reduced: tuple[int, ...], keepdim: bool) -> list[Any]:
    return [1 if d in reduced else size for d, size in enumerate(shape) if keepdim or d not in reduced]


def known_sizes(input: torch.Tensor) -> tuple[int, ...]:
    """The sizes as far as the checks ask for them: 0 where a dimension is known to be empty, else 1."""
    return tuple(0 if _is_zero(size) else 1 for size in input.shape)


def _is_zero(size: int | torch.SymInt) -> bool:
    if isinstance(size, int):
        return size == 0
    # This imports sympy, which takes half a second; whoever has symbols has it already.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(size == 0))


def batched(op: Op, overload: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of ``torch.vmap`` for an overload: the batch is one more kept dimension."""

    def rule(
        info: Any,
        in_dims: tuple[int | None, ...],
        input: torch.Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> tuple[Any, Any]:
        assert in_dims[0] is not None
        batch = input.movedim(in_dims[0], 0)
        reduced = check_dims(op, dim, known_sizes(batch)[1:])
        found = _reduce_batch(overload, batch, reduced, {} if dtype is None else {"dtype": dtype})
        if keepdim:
            shape = [batch.shape[0], *_sizes(batch.shape[1:], reduced, keepdim)]
            found = _each(found, lambda tensor: tensor.reshape(shape))
        return found, _each(found, lambda _: 0)

    return rule


def _reduce_batch(
    overload: Callable[..., Any], batch: torch.Tensor, reduced: tuple[int, ...], keywords: dict[str, Any]
) -> Any:
    """Reduce dimensions of every element of a batch, which are counted without the batch's own."""
    if not reduced:
        # Nothing to reduce is a dimension of size 1 to reduce.
        return overload(batch.unsqueeze(-1), batch.dim(), **keywords)
    if len(reduced) == 1:
        return overload(batch, reduced[0] + 1, **keywords)
    if len(reduced) == batch.dim() - 1:
        return overload(batch.flatten(1), 1, **keywords)
    return overload(batch, [dim + 1 for dim in reduced], **keywords)


def _each(found: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    return tuple(map(function, found)) if isinstance(found, tuple) else function(found)
