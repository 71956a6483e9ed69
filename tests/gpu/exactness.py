"""What "right" means for one result on the card, against ATen and against exact references."""

from __future__ import annotations

from typing import Any

import torch
from op_inputs import ORDER_OPS, UNSIGNED

from aot.dtypes import DTYPES

INEXACT = ("sum", "mean", "prod")


def aten(op: str, x: torch.Tensor, **kwargs: Any) -> Any:
    """ATen's answer on the same GPU, or None where ATen has no kernel for the dtype."""
    try:
        return getattr(torch, op)(x, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        if "not implemented" in str(error) or "not supported" in str(error):
            return None
        raise


def stand_in(op: str, x: torch.Tensor, **kwargs: Any) -> Any:
    """The exact answer for a dtype that ATen does not take, through a dtype that holds its values."""
    name = str(x.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        wide: torch.Tensor = x.float()
    elif x.dtype in UNSIGNED:
        # uint64 is shifted into int64's range, which keeps the order.
        wide = x.view(torch.int64) ^ -(2**63) if x.dtype == torch.uint64 else x.to(torch.int64)
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


def reference(op: str, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """The answer in float64 or complex128, computed on the CPU."""
    wide = x.cpu().to(torch.complex128 if x.dtype.is_complex else torch.float64)
    kwargs.pop("dtype", None)
    return getattr(torch, op)(wide, **kwargs)


def ulp(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """One unit in the last place of ``value``'s magnitude in ``dtype`` (a lane's, if complex)."""
    if dtype == "float8_e8m0fnu":
        return value.abs()
    lane = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    info = torch.finfo(getattr(torch, lane))
    exponent = torch.floor(torch.log2(value.abs().clamp_min(info.smallest_normal)))
    return torch.exp2(exponent) * info.eps


def check_close(
    op: str, found: torch.Tensor, other: torch.Tensor | None, exact: torch.Tensor, label: str
) -> None:
    """The error against ``exact`` is at most ATen's (``other``), or one unit in the last place.

    Errors are compared over the whole result: its largest error in units of ATen's largest.
    Infinities and NaNs must stand where the rounded exact answer has them.
    """
    dtype = str(found.dtype).removeprefix("torch.")
    assert found.shape == exact.shape, label
    wide = torch.complex128 if found.dtype.is_complex else torch.float64
    got = found.cpu().to(wide)
    rounded = exact.to(found.dtype).to(wide)
    special = ~torch.isfinite(rounded)
    if special.any():
        # Overflow is decided by rounding: an answer one unit below infinity may stay finite.
        near = torch.isfinite(got) & special
        assert not (torch.isnan(rounded) & ~torch.isnan(got)).any(), label
        if near.any() and other is not None:
            assert torch.equal(torch.isfinite(other.cpu().to(wide)) & special, near), label
    fine = ~special & torch.isfinite(got)
    assert (fine | special).all(), f"{label}: infinite or NaN where {exact[~(fine | special)][:4]} is right"
    error = (got - exact).abs()[fine]
    allowed = ulp(exact, dtype)[fine]
    if other is not None:
        theirs = (other.cpu().to(wide) - exact).abs()[fine]
        if theirs.numel():
            allowed = torch.maximum(allowed, theirs.max().expand_as(allowed))
    worst = (error - allowed).max() if error.numel() else torch.tensor(0.0)
    assert not worst > 0, f"{label}: error {error.max():.3e} over {allowed.max():.3e}"
