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
            exactness.check_case(case, found, wanted)
            passed(op, name, "OpInfo")
