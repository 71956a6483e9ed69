"""The columns kernels: the loader asks for them exactly where the specs build them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.build.plan import make_plan
from aot.build.specfile import load_specs
from aot.loader.ops.plan import COLS_DTYPES
from aot.target import Target

SPECS = Path(__file__).resolve().parent.parent / "kernel_specs" / "reductions"


@pytest.mark.parametrize("kernel", ["reduce", "argreduce"])
def test_the_dtypes_are_those_of_the_specs(kernel: str) -> None:
    """One constraint stands in the specs and in the loader; here the two are held together."""
    plan = make_plan(load_specs([SPECS]), [Target.parse("sm_90")])
    kernels = {k.spec.kernel: k for k in plan.kernels}
    built = {name: {v.variant.axes["dtype"] for v in found.variants} for name, found in kernels.items()}
    assert built[f"{kernel}_cols"] == built[f"{kernel}_strided"] & COLS_DTYPES
