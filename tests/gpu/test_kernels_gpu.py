"""Kernels that need clusters, much shared memory, scratch or every scalar type, through ``kernel[grid]``.

Their bundle is ``AOT_TEST_BUNDLE_PATH``, by default dist/gpu-tests (``make bundle-gpu-tests``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aot
from aot.errors import KernelMiss, LaunchError


@pytest.fixture(scope="module")
def special() -> Iterator[aot.Bundle]:
    """The bundle of tests/gpu/kernels."""
    with aot.open(os.environ.get("AOT_TEST_BUNDLE_PATH", "dist/gpu-tests")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def prebuilt(special: aot.Bundle) -> Iterator[None]:
    """Every test here launches a kernel of the special bundle."""
    before = special.stats()["launches"]
    yield
    torch.cuda.synchronize()
    assert special.stats()["launches"] > before


@pytest.mark.parametrize("k", [1, 32, 7, -(2**40) - 1])
def test_every_scalar_type(special: aot.Bundle, k: int) -> None:
    """Field cases B03, B06, B23: each scalar arrives whole, also behind narrower ones, also k == 1."""
    out = torch.zeros(16, dtype=torch.float64, device="cuda")
    given = (True, -128, 255, -32768, 65535, 1.5, -2.25, -(2**31), 0.1, 2**32 - 1, 0.5, k)
    entry = special.kernel("scalars")[(1,)](out, *given)
    assert entry is not None
    assert out.tolist() == [*map(float, given), 7.0, 7.0, 7.0, 7.0]
    claims = {arg.name: arg.claim for arg in entry.variant.args if hasattr(arg, "claim")}
    assert claims["k"] == ("1" if k == 1 else "16" if k % 16 == 0 else "any")


def test_a_scalar_that_does_not_fit_launches_nothing(special: aot.Bundle) -> None:
    """Field case B06: out of range is a miss that says so, and the next call is right."""
    out = torch.zeros(16, dtype=torch.float64, device="cuda")
    with pytest.raises(KernelMiss, match="a = 128 does not fit int8"):
        special.kernel("scalars")[(1,)](out, True, 128, 0, 0, 0, 0.0, 0.0, 0, 0.0, 0, 0.0, 5)
    assert out.sum().item() == 0
    special.kernel("scalars")[(1,)](out, True, 127, 0, 0, 0, 0.0, 0.0, 0, 0.0, 0, 0.0, 5)
    assert out[1].item() == 127


@pytest.mark.parametrize("num_ctas", [1, 2])
def test_clusters(special: aot.Bundle, num_ctas: int) -> None:
    """The grid counts clusters, as Triton's does; every element is written."""
    x = torch.randn(100_003, device="cuda")
    out = torch.full_like(x, float("nan"))
    entry = special.kernel("scale")(x, out, x.numel(), 2.0, num_ctas=num_ctas)
    assert entry is not None
    assert entry.variant.options.num_ctas == num_ctas
    assert torch.equal(out, x * 2)


def test_more_than_48_kib_of_shared_memory(special: aot.Bundle) -> None:
    """Field case B08: the driver is asked for the opt-in, in a fresh thread too (C08)."""
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)

    def launch() -> None:
        entry = special.kernel("matmul")[(4, 4)](a, b, c, 512)
        assert entry is not None
        assert entry.binary.shared > 48 * 1024

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    torch.testing.assert_close(c, a @ b, rtol=2e-3, atol=2e-2)


def test_global_scratch(special: aot.Bundle) -> None:
    """Field case B02: descriptors made on the device get scratch on the launch's stream, 20 times."""
    stream = torch.cuda.Stream()
    x = torch.randn(100, 128, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            out = torch.zeros_like(x)
            entry = special.kernel("tiles")(x, out, 100, 128)
            assert entry is not None
            assert entry.binary.scratch[0] > 0
            assert torch.equal(out, x + 1)


def test_grids(special: aot.Bundle) -> None:
    """Field cases B16, B17: tuple, list and callable; an empty grid is nothing; limits are named."""
    x = torch.ones(2048, device="cuda")
    scale = special.kernel("scale")
    for grid in ((2,), [2], [2, 1, 1], lambda meta: (-(-meta["n"] // meta["BLOCK"]),)):
        out = torch.zeros_like(x)
        scale[grid](x, out, 2048, 3.0, num_ctas=1)
        assert (out == 3).all()
    out = torch.zeros_like(x)
    assert scale[(0,)](x, out, 2048, 3.0) is None
    assert (out == 0).all()
    with pytest.raises(LaunchError, match="65535"):
        scale[(1, 65536)](x, out, 2048, 3.0)


def test_refusals_before_the_launch(special: aot.Bundle) -> None:
    """Field case A27 and C07: CPU tensors, lazy conjugates and wrong dtypes never reach the kernel."""
    x = torch.ones(2048, device="cuda")
    scale = special.kernel("scale")
    with pytest.raises(LaunchError, match="out_ptr"):
        scale[(2,)](x, torch.zeros(2048), 2048, 3.0)
    conj: Any = torch.ones(4, dtype=torch.complex64, device="cuda").conj()
    with pytest.raises(LaunchError, match="resolve_conj"):
        scale[(2,)](conj, x, 2, 3.0)
    with pytest.raises(KernelMiss, match="float64"):
        scale[(2,)](x.double(), x, 2048, 3.0)
    scale[(2,)](x, x.clone(), 2048, 3.0)
