"""What a caller passed, checked and put in one form; errors are torch's where torch has one."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.autograd import forward_ad

from aot.dtypes import DTYPES
from aot.errors import LaunchError
from aot.loader.ops import wording
from aot.loader.ops.table import Op

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
"""The dtypes of the table that the installed torch has, by name."""

_PYTHON_DTYPES: dict[object, torch.dtype] = {
    float: torch.float64,
    int: torch.int64,
    bool: torch.bool,
    complex: torch.complex128,
}

_MAX_DIMS = 64


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype without the ``torch.``."""
    return str(dtype).removeprefix("torch.")


def check_input(op: Op, tensor: Any, device_type: str) -> str:
    """Return the dtype's name of an input that can be served.

    Raises ``TypeError`` for what is no tensor, ``LaunchError`` for a kind of tensor that is
    not served, and ``NotImplementedError`` for a dtype that is not.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{op.name}(): argument 'input' (position 1) must be Tensor, not {type(tensor).__name__}"
        )
    check_kind(op, "a tensor", tensor, device_type)
    name = dtype_name(tensor.dtype)
    if name not in DTYPES:
        raise NotImplementedError(
            f"{wording.not_implemented(op.name, name)}; wanted one of {', '.join(TORCH_DTYPES)}"
        )
    return name


def check_kind(op: Op, what: str, tensor: torch.Tensor, device_type: str) -> None:
    """Raise ``LaunchError`` for a tensor that is no plain strided one on the backend's device."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        found = f"{what} of the subclass {type(tensor).__qualname__}, wanted a torch.Tensor"
    elif torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        found = f"{what} inside a torch.func transform (vmap, grad, jvp), wanted a plain one"
    elif tensor.layout != torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else tensor.layout
        found = f"{what} of layout {layout}, wanted torch.strided"
    elif tensor.is_quantized:
        found = f"{what} of the quantized dtype {tensor.dtype}, wanted a plain dtype"
    elif tensor.device.type != device_type:
        served = device_type.upper()
        found = f"{what} on device {tensor.device}, wanted {device_type}; aot.ops serves {served} tensors"
    else:
        return
    raise LaunchError(f"aot.ops.{op.name}: found {found}; torch.{op.name} may serve it")


def check_gradient(op: Op, tensor: torch.Tensor) -> None:
    """Raise ``RuntimeError`` where torch would record a gradient: a result without one is wrong."""
    if op.differentiable and _has_gradient(tensor):
        raise RuntimeError(
            f"{op.name}(): found an input that requires grad, but aot.ops.{op.name} computes no gradient; "
            f"call it under torch.no_grad() or on input.detach(), or call torch.{op.name}"
        )


def _has_gradient(tensor: torch.Tensor) -> bool:
    if tensor.requires_grad and torch.is_grad_enabled():
        return True
    # The level is negative outside of forward-mode differentiation, which is nearly always.
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def check_flag(op: Op, keepdim: Any) -> bool:
    """Return ``keepdim``. Raises ``TypeError`` for anything but a bool, as torch does."""
    if keepdim is True or keepdim is False:
        return keepdim
    raise TypeError(f"{op.name}(): argument 'keepdim' must be bool, not {type(keepdim).__name__}")


def check_dtype(op: Op, dtype: Any) -> torch.dtype | None:
    """Return the dtype that was asked for; Python's ``float`` and the like mean what they do in torch."""
    if dtype is None or isinstance(dtype, torch.dtype):
        found = dtype
    else:
        try:
            found = _PYTHON_DTYPES[dtype]
        except (KeyError, TypeError):
            raise TypeError(
                f"{op.name}(): argument 'dtype' must be torch.dtype, not {type(dtype).__name__}"
            ) from None
    if found is not None and dtype_name(found) not in DTYPES:
        raise NotImplementedError(
            f"{wording.not_implemented(op.name, dtype_name(found))}; wanted one of {', '.join(TORCH_DTYPES)}"
        )
    return found


def check_dims(op: Op, dim: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions to reduce, each in ``range(len(shape))``, sorted.

    ``dim`` is None, an int, or (where ``op.lists``) a list or tuple of ints. Raises
    ``TypeError``; ``IndexError`` for a dimension out of range; ``RuntimeError`` for one that
    is named twice; and, where the operation has no identity, torch's error for an empty one.
    """
    ndim = len(shape)
    if dim is None or (isinstance(dim, list | tuple) and not dim and op.lists):
        named: tuple[int, ...] = ()
        dims = () if op.empty_list_keeps and dim is not None else tuple(range(ndim))
    else:
        named = tuple(
            _index(op, item, dim) for item in (dim if isinstance(dim, list | tuple) and op.lists else (dim,))
        )
        dims = _in_range(named, ndim)
    if ndim > _MAX_DIMS:
        raise RuntimeError(wording.dims_too_many())
    if 0 in shape and op.family in ("extremum", "index"):
        _refuse_empty(op, named, dims, shape)
    # A tensor of no dimensions has the dimensions 0 and -1 to name, and nothing to reduce.
    return tuple(sorted(dims)) if ndim else ()


def _in_range(named: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Count negative dimensions from the end; refuse those out of range and those named twice."""
    bound = max(ndim, 1)
    dims: list[int] = []
    for dim in named:
        if not -bound <= dim < bound:
            raise IndexError(wording.dim_range(dim, ndim))
        if dim % bound in dims:
            raise RuntimeError(wording.dim_repeated(dim % bound))
        dims.append(dim % bound)
    return tuple(dims)


def _refuse_empty(op: Op, named: tuple[int, ...], dims: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise where an operation without an identity would reduce nothing."""
    if not named:
        error = IndexError if op.name.startswith("arg") else RuntimeError
        raise error(wording.empty_all(op.name))
    for dim, written in zip(dims, named, strict=True):
        if shape[dim] == 0:
            raise IndexError(wording.empty_dim(op.name, written if op.lists else dim))


def _index(op: Op, item: Any, dim: Any) -> int:
    if type(item) is int:
        return item
    if isinstance(item, bool):
        raise _dim_type(op, dim)
    try:
        return operator.index(item)
    except TypeError:
        raise _dim_type(op, dim) from None


def _dim_type(op: Op, dim: Any) -> TypeError:
    found = type(dim).__name__
    if isinstance(dim, list | tuple) and op.lists:
        found += " of " + ", ".join(sorted({type(item).__name__ for item in dim}))
    wanted = "int or tuple of ints" if op.lists else "int"
    return TypeError(f"{op.name}(): argument 'dim' must be {wanted}, not {found}")
