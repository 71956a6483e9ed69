"""Every op × dtype × layout through prebuilt kernels on the card, against ATen and float64."""

from __future__ import annotations

import warnings
from typing import Any

import exactness
import numpy as np
import op_inputs
import pytest
import torch

import aot
from aot.dtypes import DTYPES

warnings.filterwarnings("ignore", message=".*ComplexHalf.*")

PAIRS = [(op, dtype) for op in op_inputs.OPS for dtype in DTYPES if op_inputs.serves(op, dtype)]


# What each class of kernel serves: the shape of a contiguous tensor, the dim, elements to leave out
# at the start of its last dimension, which takes it off 16-byte boundaries.
CLASSES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "a thread a row": ((600, 13), 1, 0),
    "middling rows": ((300, 61), 1, 0),
    "rows": ((70, 333), 1, 0),
    "long rows": ((5, 3008), 1, 0),
    "long rows, odd": ((5, 3201), 1, 1),
    "split rows": ((2, 40000), 1, 0),
    "split rows, odd": ((2, 40011), 1, 3),
    "columns": ((3, 75, 144), 1, 0),
    "split columns": ((1500, 80), 0, 0),
    "few columns": ((2, 5, 64), 1, 0),
    "wide columns": ((3, 9, 592), 1, 0),
    "one wide tile": ((16, 512), 0, 0),
    "columns, odd": ((75, 145), 0, 1),
}


def check(op: str, x: torch.Tensor, label: str, **kwargs: Any) -> None:
    """Ours against ATen, or what stands in for it, exact or no further from the truth."""
    dtype = str(x.dtype).removeprefix("torch.")
    try:
        want = exactness.aten(op, x, **kwargs)
        missing = want is None
        if missing:
            want = exactness.stand_in(op, x, **kwargs)
    except (RuntimeError, IndexError) as error:
        with pytest.raises(type(error)):
            getattr(aot.ops, op)(x, **kwargs)
        return
    found = getattr(aot.ops, op)(x, **kwargs)
    pairs = zip(found, want, strict=True) if isinstance(want, tuple) else ((found, want),)
    for one, other in pairs:
        if exactness.is_exact(op, dtype):
            assert exactness.same(one, other), label
        else:
            if not missing:
                assert one.dtype == other.dtype, label
            exact = exactness.reference(op, x, **kwargs)
            exactness.check_close(op, one, None if missing else other, exact, label)


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_every_layout(op: str, dtype: str, passed: Any) -> None:
    """Field cases A15, A16, A28 to A34, B05: every layout class, every dim, keepdim both ways."""
    for layout, x in op_inputs.layouts(dtype, device="cuda").items():
        for kwargs in op_inputs.calls(op, x):
            check(op, x, f"{op} {dtype} {layout} {kwargs}", **kwargs)
        passed(op, dtype, layout)


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_every_class_of_kernel(op: str, dtype: str, passed: Any) -> None:
    """Tiles that are full and not, tails of vectors, splits, and last tiles that reach back."""
    for name, (shape, dim, skipped) in CLASSES.items():
        x = op_inputs.make(shape, dtype, device="cuda", seed=21)[..., skipped:]
        check(op, x, f"{op} {dtype} {name}", dim=dim)
        passed(op, dtype, name)


@pytest.mark.parametrize("dtype", [d.name for d in DTYPES.values() if d.kind in ("float", "complex")])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_error_over_a_large_random_set(op: str, dtype: str, passed: Any) -> None:
    """Long rows with cancellation: the mean error is no larger than ATen's, or below half a unit."""
    for shape in ((512, 4096), (64, 40001), (3, 1_000_003)):
        if dtype.startswith("float8"):
            x = op_inputs.make(shape, dtype, device="cuda", seed=3)
        else:
            wide = torch.complex128 if dtype.startswith("complex") else torch.float64
            x = torch.randn(shape, dtype=wide, device="cuda").to(getattr(torch, dtype))
        found = getattr(aot.ops, op)(x, -1)
        exact = exactness.reference(op, x, dim=-1)
        other = exactness.aten(op, x, dim=-1)
        allowed = exactness.ulp(exact, dtype) / 2
        if other is not None:
            allowed = np.maximum(allowed, np.abs(exactness.widened(other) - exact).mean())
        error = np.abs(exactness.widened(found) - exact)
        fine = np.isfinite(error)
        assert error[fine].mean() <= allowed[fine].mean(), f"{op} {dtype} {shape}"
    passed(op, dtype, "large random set")


@pytest.mark.parametrize("op", op_inputs.OPS)
def test_same_bits_every_time(op: str, passed: Any) -> None:
    """50 runs give the same bits, with another stream keeping the card busy."""
    x = op_inputs.make((7, 1_200_001), "float32", device="cuda")
    busy = torch.cuda.Stream()
    noise = torch.randn(4096, 4096, device="cuda")
    first = getattr(aot.ops, op)(x, **({"dim": -1} if op != "prod" else {"dim": 1}))
    for run in range(50):
        if run % 5 == 0:
            with torch.cuda.stream(busy):
                noise @ noise
        again = getattr(aot.ops, op)(x, dim=1)
        pairs = zip(first, again, strict=True) if isinstance(first, tuple) else ((first, again),)
        for one, other in pairs:
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), f"{op} run {run}"
    passed(op, "float32", "50 runs")


def test_rows_do_not_depend_on_the_batch(passed: Any) -> None:
    """Field case A43, for reductions along a row that one program holds: the docs name the limit."""
    x = torch.randn(1024, 3072, device="cuda", dtype=torch.bfloat16)
    whole = aot.ops.sum(x, -1)
    for batch in (512, 600, 1000):
        assert torch.equal(aot.ops.sum(x[:batch], -1), whole[:batch])
    passed("sum", "bfloat16", "batch invariance")
