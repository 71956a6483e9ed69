"""What the reductions must answer, in exact arithmetic where the answer is exact.

Elements go to numpy in a type that holds every value of the dtype: float64, complex128, int64,
uint64 or bool. numpy shares torch's rules that the first NaN wins an argmax or argmin and that
ties go to the lowest index, and has the unsigned types that torch's reductions lack.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from interp import COMPLEX, F8, FLOATS, INTS, bytes_of, torch_dtype

Array = npt.NDArray[np.generic]

# Values that every format but e8m0 holds, with exact sums and, for factors, exact products.
TERMS = (-6.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0)
FACTORS = (-2.0, -1.0, -1.0, -0.5, 0.5, 1.0, 1.0, 2.0)
POWERS = (0.25, 0.5, 0.5, 1.0, 1.0, 2.0)


def exact(x: torch.Tensor) -> Array:
    """The values of ``x`` without loss."""
    if x.is_complex():
        return x.to(torch.complex128).numpy()
    if x.is_floating_point():
        return x.to(torch.float64).numpy()
    if x.dtype == torch.bool:
        return x.view(torch.uint8).numpy() != 0
    array = x.numpy()
    return array if array.dtype == np.uint64 else array.astype(np.int64)


def sample(op: str, dtype: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Random elements for which ``op`` has an exact answer. Bools hold any byte."""
    generator = torch.Generator().manual_seed(seed)

    def choose(values: tuple[float, ...]) -> torch.Tensor:
        picks = torch.randint(len(values), shape, generator=generator)
        return torch.tensor(values, dtype=torch.float64)[picks]

    if dtype in INTS:
        size = torch.empty((), dtype=torch_dtype(dtype)).element_size()
        raw = torch.randint(256, (*shape, size), generator=generator, dtype=torch.uint8)
        if dtype == "bool":
            raw *= choose((0.0, 1.0))[..., None].to(torch.uint8)
        elif op in ("any", "all"):
            raw *= choose((0.0, 0.0, 1.0) if op == "any" else (1.0,) * 20 + (0.0,))[..., None].to(torch.uint8)
        return raw.view(torch_dtype(dtype))[..., 0]
    if dtype == "float8_e8m0fnu":
        return choose(POWERS).to(torch_dtype(dtype))
    if dtype in COMPLEX:
        parts = choose((0.0, 1.0, -1.0, 0.0)), choose((1.0, -1.0, 0.0) if op == "sum" else (1.0, -1.0))
        if op == "prod":
            keep = torch.rand(shape, generator=generator) < 0.9
            parts = torch.where(keep, torch.zeros(()), parts[0]), parts[1]
        return torch.complex(*parts).to(torch_dtype(dtype))
    assert dtype in FLOATS + F8
    return choose(FACTORS if op == "prod" else TERMS).to(torch_dtype(dtype))


def signed_zero(op: str, values: Array, results: Array, axis: int) -> Array:
    """Give results that are zero the policy's sign: a maximum +0 if there is one, a minimum -0."""
    negative = np.signbit(values) & (values == 0)
    positive = ~np.signbit(values) & (values == 0)
    minus = ~positive.any(axis) if op == "amax" else negative.any(axis)
    return np.where(results == 0, np.where(minus, -0.0, 0.0), results)


def expected(op: str, x: torch.Tensor, out: str, axis: int = -1) -> torch.Tensor:
    """Reduce ``axis`` of ``x``; the result rounded once to the dtype ``out``."""
    values = exact(x)
    with np.errstate(all="ignore"):
        if op in ("any", "all"):
            true = np.isnan(values) | (values != 0) if values.dtype.kind in "fc" else values != 0
            result: Array = getattr(np, op)(true, axis=axis)
        elif op in ("sum", "prod"):
            if values.dtype.kind == "b":
                values = values.astype(np.int64)
            result = getattr(np, op)(values, axis=axis)
            if values.dtype == np.uint64:
                result = result.astype(np.int64)
        else:
            result = {"amax": np.max, "amin": np.min}[op](values, axis=axis)
            if values.dtype.kind == "f":
                result = signed_zero(op, values, result, axis)
    return torch.from_numpy(np.ascontiguousarray(result)).to(torch_dtype(out))


def expected_arg(op: str, x: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """The index of the first NaN, else of the first best element."""
    result = {"argmax": np.argmax, "argmin": np.argmin}[op](exact(x), axis=axis)
    return torch.from_numpy(np.ascontiguousarray(result))


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal in shape, dtype and every bit, any NaN being equal to any other.

    The sign of a zero in a complex number does not count: which zeros a complex product meets
    on its way depends on the order of the factors.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if found.is_complex():
        found, wanted = torch.view_as_real(found) + 0.0, torch.view_as_real(wanted) + 0.0
    bits = torch.equal(bytes_of(found), bytes_of(wanted))
    if bits or not found.is_floating_point():
        return bits
    a, b = found.to(torch.float64), wanted.to(torch.float64)
    return bool((((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())).all())
