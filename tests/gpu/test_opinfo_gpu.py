"""PyTorch's OpInfo samples of the served ops, on the card, through prebuilt kernels."""

from __future__ import annotations

import warnings
from typing import Any

import exactness
import opinfo_cases
import pytest

import aot

warnings.filterwarnings("ignore", message=".*ComplexHalf.*")


@pytest.mark.parametrize(("op", "variant"), opinfo_cases.OPS)
def test_opinfo_samples(op: str, variant: str, passed: Any) -> None:
    """Every sample of every dtype that ATen takes on CUDA: same bits where exact, else as close."""
    for dtype in sorted(opinfo_cases.dtypes_of(op, variant, "cuda"), key=str):
        name = str(dtype).removeprefix("torch.")
        for case in opinfo_cases.cases(op, variant, "cuda", [dtype]):
            wanted = case.expected()
            found = getattr(aot.ops, op)(case.input, *case.args, **case.kwargs)
            pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else ((found, wanted),)
            for one, other in pairs:
                assert one.dtype == other.dtype, case.label
                if exactness.is_exact(op, name) and "dtype" not in case.kwargs:
                    assert exactness.same(one, other), case.label
                elif one.dtype.is_floating_point or one.dtype.is_complex:
                    args = dict(zip(("dim", "keepdim"), case.args, strict=False)) | case.kwargs
                    exact = exactness.reference(op, case.input, **args)
                    exactness.check_close(op, one, other, exact, case.label)
                else:
                    assert exactness.same(one, other), case.label
            passed(op, name, "OpInfo")
