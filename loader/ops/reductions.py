"""The reductions, with the signatures, results and errors of torch's functions of the same names.

Every function takes CUDA tensors of any strides and returns what torch returns: NaN wins,
the first index wins ties, integers are summed in int64. Where torch has no kernel for a
dtype, ``docs/reference/ops.md`` says what ours does. There is no gradient here: an input that
requires grad is refused while grad mode is on (``aot.ops`` sends such a call through torch's
dispatcher). Each function has ``plan``, which does everything but launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Protocol

import torch

from aot.loader.ops import backend, outputs, table, wording
from aot.loader.ops.arguments import (
    TORCH_DTYPES,
    check_dims,
    check_dtype,
    check_flag,
    check_gradient,
    check_input,
    dtype_name,
)
from aot.loader.ops.execute import ReductionCall, Returns
from aot.loader.ops.plan import make_plan
from aot.loader.ops.table import Op

Dim = int | list[int] | tuple[int, ...] | None

P = ParamSpec("P")


class Reduction(Protocol[P]):
    """A function that reduces at once, and ``plan``, which returns the call to make."""

    __name__: str
    __doc__: str | None
    plan: Callable[P, ReductionCall]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...


def _reduction(plan: Callable[P, ReductionCall]) -> Reduction[P]:
    @wraps(plan)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        return plan(*args, **kwargs).run()

    found: Any = run
    found.plan = plan
    return found  # type: ignore[no-any-return]


@_reduction
def sum(
    input: torch.Tensor,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> ReductionCall:
    """Sum over ``dim`` (None or ``[]``: all). Integers and bool give int64 unless ``dtype`` is named."""
    return _values(table.SUM, input, dim, keepdim, dtype, out)


@_reduction
def mean(
    input: torch.Tensor,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> ReductionCall:
    """Mean over ``dim``. Integers and bool need a floating or complex ``dtype``."""
    return _values(table.MEAN, input, dim, keepdim, dtype, out)


@_reduction
def prod(
    input: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> ReductionCall:
    """Product over ``dim`` (None: all). Integers and bool give int64 unless ``dtype`` is named."""
    return _values(table.PROD, input, dim, keepdim, dtype, out)


@_reduction
def amax(
    input: torch.Tensor, dim: Dim = (), keepdim: bool = False, *, out: torch.Tensor | None = None
) -> ReductionCall:
    """Maximum over ``dim`` (``()`` or None: all); NaN where an element is NaN."""
    return _values(table.AMAX, input, dim, keepdim, None, out)


@_reduction
def amin(
    input: torch.Tensor, dim: Dim = (), keepdim: bool = False, *, out: torch.Tensor | None = None
) -> ReductionCall:
    """Minimum over ``dim`` (``()`` or None: all); NaN where an element is NaN."""
    return _values(table.AMIN, input, dim, keepdim, None, out)


@_reduction
def max(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None
) -> ReductionCall:
    """Without ``dim`` the maximum of all elements; with it ``torch.return_types.max(values, indices)``.

    ``out`` is a tensor without ``dim`` and a pair of tensors (values, int64 indices) with it.
    """
    if dim is None:
        return _values(table.MAX_ALL, input, None, keepdim, None, out)
    return _extremes(table.MAX_DIM, input, dim, keepdim, out)


@_reduction
def min(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None
) -> ReductionCall:
    """Without ``dim`` the minimum of all elements; with it ``torch.return_types.min(values, indices)``.

    ``out`` is a tensor without ``dim`` and a pair of tensors (values, int64 indices) with it.
    """
    if dim is None:
        return _values(table.MIN_ALL, input, None, keepdim, None, out)
    return _extremes(table.MIN_DIM, input, dim, keepdim, out)


@_reduction
def argmax(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> ReductionCall:
    """Index of the first maximum along ``dim`` (None: in the flattened tensor), int64; a NaN is largest."""
    return _positions(table.ARGMAX, input, dim, keepdim, out)


@_reduction
def argmin(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> ReductionCall:
    """Index of the first minimum along ``dim`` (None: in the flattened tensor), int64; a NaN is smallest."""
    return _positions(table.ARGMIN, input, dim, keepdim, out)


@_reduction
def any(
    input: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> ReductionCall:
    """Whether an element is not zero. uint8 gives uint8, everything else bool.

    ``dim=[]`` reduces nothing, as in torch.
    """
    return _values(table.ANY, input, dim, keepdim, None, out)


@_reduction
def all(
    input: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> ReductionCall:
    """Whether no element is zero. uint8 gives uint8, everything else bool.

    ``dim=[]`` reduces nothing, as in torch.
    """
    return _values(table.ALL, input, dim, keepdim, None, out)


def _values(op: Op, input: Any, dim: Any, keepdim: Any, dtype: Any, out: Any) -> ReductionCall:
    """The one path of every function that returns one tensor of values."""
    served = backend.current()
    name = check_input(op, input, served.device_type)
    if out is not None:
        outputs.check_out(op, out, input, served.device_type)
    check_gradient(op, input)
    result_name = _result_name(op, name, check_dtype(op, dtype), out)
    keepdim = check_flag(op, keepdim)
    dims = check_dims(op, dim, input.shape)
    if op.family == "extremum":
        _refuse_complex(op, name)
    types = table.resolve(op, name, result_name)
    source = _plain(input)
    if types.cast is not None:
        source = source.to(TORCH_DTYPES[types.cast])
    outs = () if out is None else (out,)
    return _planned(op, types, input, source, dims, keepdim, served, returns="value", outs=outs)


def _positions(op: Op, input: Any, dim: Any, keepdim: Any, out: Any) -> ReductionCall:
    """argmax and argmin."""
    served = backend.current()
    name = check_input(op, input, served.device_type)
    if out is not None:
        outputs.check_out(op, out, input, served.device_type)
        outputs.result_dtype(op, dtype_name(out.dtype), None, "int64")
    outs = () if out is None else (out,)
    return _indices(op, input, name, dim, keepdim, served, returns="index", outs=outs)


def _extremes(op: Op, input: Any, dim: Any, keepdim: Any, out: Any) -> ReductionCall:
    """max and min along a dimension: values and indices."""
    served = backend.current()
    name = check_input(op, input, served.device_type)
    if isinstance(dim, torch.Tensor):
        raise TypeError(
            f"{op.name}(): found a second tensor, but aot.ops.{op.name} reduces one; "
            f"for the elementwise {op.name} call torch.{op.name}imum"
        )
    if out is not None:
        _check_pair(op, out, input, name, served)
    check_gradient(op, input)
    outs = () if out is None else tuple(out)
    return _indices(op, input, name, dim, keepdim, served, returns="both", outs=outs)


def _check_pair(op: Op, out: Any, input: torch.Tensor, name: str, served: backend.Backend) -> None:
    if not isinstance(out, tuple | list):
        raise TypeError(f"{op.name}(): argument 'out' must be tuple of Tensors, not {type(out).__name__}")
    if len(out) != 2:
        raise TypeError(f"expected tuple of 2 elements but got {len(out)}")
    for item, wanted in zip(out, (name, "int64"), strict=True):
        outputs.check_out(op, item, input, served.device_type)
        outputs.result_dtype(op, dtype_name(item.dtype), None, wanted)


def _indices(
    op: Op,
    input: torch.Tensor,
    name: str,
    dim: Any,
    keepdim: Any,
    served: backend.Backend,
    *,
    returns: Returns,
    outs: tuple[torch.Tensor, ...],
) -> ReductionCall:
    keepdim = check_flag(op, keepdim)
    dims = check_dims(op, dim, input.shape)
    _refuse_complex(op, name)
    types = table.resolve(op, name, name)
    return _planned(op, types, input, _plain(input), dims, keepdim, served, returns=returns, outs=outs)


def _plain(input: torch.Tensor) -> torch.Tensor:
    """The numbers of ``input`` as they lie in memory: no lazy conjugate or sign, no gradient."""
    detached = input.detach() if input.requires_grad else input
    return detached.resolve_conj().resolve_neg()


def _planned(
    op: Op,
    types: table.Types,
    input: torch.Tensor,
    source: torch.Tensor,
    dims: tuple[int, ...],
    keepdim: bool,
    served: backend.Backend,
    *,
    returns: Returns,
    outs: tuple[torch.Tensor, ...],
) -> ReductionCall:
    shape, strides = tuple(source.shape), source.stride()
    aligned = source.data_ptr() % 16 == 0
    plan = make_plan(op, types, shape, strides, dims, keepdim, served.policy(source.device), aligned)
    return ReductionCall(
        op=op, plan=plan, returns=returns, input=input, source=source, outs=outs, served=served
    )


def _result_name(op: Op, name: str, requested: torch.dtype | None, out: torch.Tensor | None) -> str:
    """The name of the result's dtype, from the input's, ``dtype=`` and ``out=``."""
    wanted = None if requested is None else dtype_name(requested)
    default = table.default_result(op, name)
    if op.mean:
        which, deciding = ("Input", name) if wanted is None else ("Optional", wanted)
        if table.is_integral(deciding):
            raise RuntimeError(wording.mean_dtype(which, deciding))
    if out is not None:
        return outputs.result_dtype(op, dtype_name(out.dtype), wanted, default)
    return default if wanted is None else wanted


def _refuse_complex(op: Op, name: str) -> None:
    """Raise what torch raises for the largest or smallest of complex numbers, which have no order."""
    if not name.startswith("complex"):
        return
    if op.family == "index":
        raise RuntimeError(wording.no_complex(op.name))
    kernel = f"{op.name}_all_cuda" if not op.lists else f"{op.name[1:]}_values_cuda"
    raise NotImplementedError(wording.not_implemented(kernel, name))
