"""More than 2^31 elements, and small views deep inside large buffers. Needs 12 GB of GPU memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aot


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    """Give the large buffers back, so that the next test has the card's memory."""
    yield
    torch.cuda.empty_cache()


def test_argmax_over_more_than_2_31_bytes(passed: Any) -> None:
    """Field case A35: row 32 holds the only one."""
    x = torch.zeros(64, 16777217, dtype=torch.float16, device="cuda")
    x[32] = 1
    assert (aot.ops.argmax(x, 0) == 32).all()
    passed("argmax", "float16", "2^30 elements")


def test_max_beyond_2_32_elements(passed: Any) -> None:
    """Field case A35: the last of 2^32 + 8 elements is the maximum."""
    x = torch.zeros(2**32 + 8, dtype=torch.int8, device="cuda")
    x[-1] = 1
    assert aot.ops.max(x).item() == 1
    assert aot.ops.argmax(x).item() == 2**32 + 7
    assert aot.ops.any(x.view(torch.bool)).item() is True
    passed("argmax", "int8", "2^32 elements")


def test_sums_beyond_2_32_elements(passed: Any) -> None:
    """Field case A36: a 32-bit count would give 705032704."""
    x = torch.ones(50000, 100000, dtype=torch.int8, device="cuda")
    assert aot.ops.sum(x).item() == 5_000_000_000
    assert (aot.ops.sum(x, 0) == 50000).all()
    assert (aot.ops.sum(x, 1) == 100000).all()
    passed("sum", "int8", "5e9 elements")
    del x
    y = torch.ones(50000, 100000, dtype=torch.bfloat16, device="cuda")
    assert aot.ops.mean(y).item() == 1.0
    passed("mean", "bfloat16", "5e9 elements")


def test_a_small_view_deep_in_a_large_buffer(passed: Any) -> None:
    """Field case A37: numel alone decides nothing; strides and the storage offset are 64 bits wide."""
    base = torch.zeros(5_000_000_000, dtype=torch.int8, device="cuda")
    for offset, stride in ((0, 2**31 + 16), (16, 2**31 + 16), (2**32 + 1, 4096), (1, 2**31 + 7)):
        view = base.as_strided((2, 4096), (stride, 1), offset)
        view.copy_(torch.randint(-9, 9, (2, 4096), dtype=torch.int8, device="cuda"))
        for dim in (None, 0, 1):
            assert torch.equal(aot.ops.sum(view, dim), torch.sum(view, dim)), (offset, stride, dim)
        assert torch.equal(aot.ops.argmax(view, 1), torch.argmax(view.clone(), 1))
        assert torch.equal(aot.ops.amax(view.T, 0), torch.amax(view.T.clone(), 0))
    passed("sum", "int8", "deep view")
