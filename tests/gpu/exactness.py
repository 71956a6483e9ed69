"""What "right" means for one result on the card, against ATen and against exact references."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from op_inputs import ORDER_OPS, UNSIGNED
from opinfo_cases import Case

from aot.dtypes import DTYPES

INEXACT = ("sum", "mean", "prod")


def aten(op: str, x: torch.Tensor, **kwargs: Any) -> Any:
    """ATen's answer on the same GPU, or None where ATen has no kernel for the dtype."""
    try:
        return getattr(torch, op)(x, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        if any(
            words in str(error) for words in ("not implemented", "not supported", "does not support bool")
        ):
            return None
        raise


def stand_in(op: str, x: torch.Tensor, **kwargs: Any) -> Any:
    """The exact answer for a dtype that ATen does not take, through a dtype that holds its values."""
    name = str(x.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        wide: torch.Tensor = x.float()
    elif x.dtype in UNSIGNED:
        # uint64 is shifted into int64's range, which keeps the order; zero is zero unshifted.
        wide = x.to(torch.int64)
        if x.dtype == torch.uint64 and op in ORDER_OPS:
            wide = x.view(torch.int64) ^ -(2**63)
    elif x.dtype == torch.bool:
        wide = x.to(torch.uint8)
    elif x.dtype == torch.complex32:
        wide = x.to(torch.complex64)
    else:
        raise AssertionError(f"no stand-in for {op} of {name}")
    found = getattr(torch, op)(wide, **kwargs)
    if op in ("any", "all", "argmax", "argmin"):
        return found
    if isinstance(found, tuple):
        return _back(found[0], x.dtype), found[1]
    return _back(found, x.dtype) if op in ORDER_OPS else found


def _back(found: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.uint64:
        return (found ^ -(2**63)).view(dtype)
    return found.to(dtype)


def is_exact(op: str, dtype: str) -> bool:
    """Whether the operation has one right answer, bit for bit."""
    return op not in INEXACT or DTYPES[dtype].kind in ("int", "uint", "bool")


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal in shape, dtype and every value; NaN equals NaN, and zeros of two signs are equal."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if found.dtype in UNSIGNED or (found.dtype.is_floating_point and found.element_size() == 1):
        if found.dtype.is_floating_point:
            return torch.allclose(found.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)
        signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
        return torch.equal(found.view(signed), wanted.view(signed))
    if found.dtype.is_floating_point:
        return torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True)
    return torch.equal(found, wanted)


def reference(op: str, x: torch.Tensor, **kwargs: Any) -> Any:
    """The answer in numpy's long double (a 64-bit significand on x86), computed on the CPU."""
    kwargs.pop("dtype", None)
    dim, keepdim = kwargs.pop("dim", None), kwargs.pop("keepdim", False)
    assert not kwargs, kwargs
    if isinstance(dim, (list, tuple)):
        dim = tuple(dim) or None
    values = widened(x)
    if values.ndim == 0:
        return values
    return getattr(np, op)(values, axis=dim, keepdims=keepdim)


def widened(x: torch.Tensor) -> Any:
    """A tensor's values as numpy long doubles."""
    x = x.cpu()
    if x.dtype.is_complex:
        return x.to(torch.complex128).resolve_conj().resolve_neg().numpy().astype(np.clongdouble)
    return x.to(torch.float64).resolve_neg().numpy().astype(np.longdouble)


# (significand bits after the point, smallest normal exponent) of a lane.
_PRECISION = {
    "float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126), "float64": (52, -1022),
    "complex32": (10, -14), "complex64": (23, -126), "complex128": (52, -1022),
    "float8_e4m3fn": (3, -6), "float8_e5m2": (2, -14), "float8_e4m3fnuz": (3, -7),
    "float8_e5m2fnuz": (2, -15), "float8_e8m0fnu": (0, -127),
}  # fmt: skip


def ulp(value: Any, dtype: str) -> Any:
    """One unit in the last place of ``value``'s magnitude in ``dtype`` (a lane's, if complex)."""
    bits, lowest = _PRECISION[dtype]
    size = np.abs(value)
    exponent = np.floor(np.log2(np.where(size > 0, size, np.exp2(np.longdouble(lowest)))))
    return np.exp2(np.maximum(exponent, lowest) - bits)


def check_close(op: str, found: torch.Tensor, other: torch.Tensor | None, exact: Any, label: str) -> None:
    """The error against ``exact`` is at most ATen's (``other``), or one unit in the last place.

    Errors are compared over the whole result: each against ATen's largest. Infinities and
    NaNs must stand where the rounded exact answer has them; within one unit of the largest
    finite number, rounding decides.
    """
    dtype = str(found.dtype).removeprefix("torch.")
    assert found.shape == exact.shape, label
    got = widened(found)
    with np.errstate(all="ignore"):
        rounded = _rounded(exact, found.dtype)
        error = np.abs(got - exact)
        finite = np.isfinite(rounded) & np.isfinite(got)
        allowed = ulp(exact, dtype)
        if other is not None:
            theirs = np.abs(widened(other) - exact)
            allowed = np.maximum(allowed, theirs[np.isfinite(theirs)].max(initial=0))
        unlike = np.isfinite(rounded) != np.isfinite(got)
        if unlike.any() and other is not None:
            unlike &= np.isfinite(widened(other)) != np.isfinite(got)
    assert not unlike.any(), f"{label}: {got[unlike][:3]} where {exact[unlike][:3]} is right"
    if finite.any():
        worst = np.max((error - allowed)[finite])
        assert worst <= 0, f"{label}: error {error[finite].max():.3e} over {allowed[finite].max():.3e}"


def check_case(case: Case, found: Any, wanted: Any) -> None:
    """A sample's result against ATen's: the same bits where one answer is right, else as close."""
    name = str(case.input.dtype).removeprefix("torch.")
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else ((found, wanted),)
    for one, other in pairs:
        assert one.dtype == other.dtype, case.label
        inexact = one.dtype.is_floating_point or one.dtype.is_complex
        exact = is_exact(case.op, name) and "dtype" not in case.kwargs
        if inexact and not exact:
            args = dict(zip(("dim", "keepdim"), case.args, strict=False)) | case.kwargs
            check_close(case.op, one, other, reference(case.op, case.input, **args), case.label)
        else:
            assert same(one, other), case.label


def _rounded(exact: Any, dtype: torch.dtype) -> Any:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    kind = np.complex128 if dtype.is_complex else np.float64
    # numpy gives a scalar where there is one element.
    return widened(torch.from_numpy(np.asarray(exact).astype(kind)).to(wide).to(dtype))
