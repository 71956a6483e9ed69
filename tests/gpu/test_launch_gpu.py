"""Streams, threads, graphs and errors on the card."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

import aot


def test_the_current_stream_is_used(passed: Any) -> None:
    """Field case C12: the kernel is behind the fill, on the stream where both were queued."""
    stream = torch.cuda.Stream()
    x = torch.zeros(1 << 22, device="cuda")
    for _ in range(8):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x.fill_(1)
            total = aot.ops.sum(x)
        stream.synchronize()
        assert total.item() == 1 << 22
        x.zero_()
        torch.cuda.synchronize()
    passed("sum", "float32", "side stream")


def test_threads_that_never_touched_cuda(passed: Any) -> None:
    """Field case C08: 16 fresh threads launch at once."""
    x = torch.arange(100_000, device="cuda")
    results: list[int] = []

    def work() -> None:
        results.append(int(aot.ops.sum(x).item()))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [99_999 * 50_000] * 16
    passed("sum", "int64", "threads")


def test_a_graph_is_right_on_every_replay(passed: Any) -> None:
    """Field case C11: the split reduction's counter is zero again after every replay."""
    x = torch.randn(1 << 22, device="cuda")
    aot.ops.sum(x)
    aot.ops.argmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total, where = aot.ops.sum(x), aot.ops.argmax(x)
    for _ in range(100):
        x.normal_()
        graph.replay()
        assert torch.equal(total, aot.ops.sum(x))
        assert torch.equal(where, torch.argmax(x))
    passed("sum", "float32", "graph replay")


def test_misaligned_address_leaves_the_process_usable(passed: Any) -> None:
    """Field case B05: the unaligned variant is right, and the next launch works."""
    for dtype in (torch.float32, torch.float16, torch.int8, torch.float64):
        for n in (128, 1024, 1_000_000):
            base = torch.ones(n + 1, dtype=dtype, device="cuda")
            assert aot.ops.sum(base[1:], dtype=torch.float64).item() == n
            assert aot.ops.sum(base, dtype=torch.float64).item() == n + 1
    wide = torch.randn(2048, 7920, device="cuda")
    torch.testing.assert_close(aot.ops.sum(wide[:, :1953], 1), wide[:, :1953].sum(1), rtol=1e-4, atol=1e-3)
    passed("sum", "float32", "misaligned")


def test_sizes_around_every_specialization(passed: Any) -> None:
    """Field case C01: no size and no alignment is without a prebuilt kernel."""
    for n in (1, 2, 15, 16, 17, 31, 32, 33, 1000, 1023, 1024, 1025, 4096):
        for m in (1, 2, 16, 33):
            for offset in (0, 1):
                base = torch.randint(-50, 50, (m * n + offset,), device="cuda", dtype=torch.int32)
                x = base[offset:].view(m, n)
                for dim in (None, 0, 1):
                    assert torch.equal(aot.ops.sum(x, dim), x.sum(dim)), (m, n, offset, dim)
    passed("sum", "int32", "size sweep")


def test_out_respects_strides(passed: Any) -> None:
    """Field case D06: a column of a larger tensor is written down the column."""
    b = torch.randn(3, 5, device="cuda")
    table = torch.full((5, 3), 7.0, device="cuda")
    aot.ops.sum(b, 0, out=table[:, 1])
    torch.testing.assert_close(table[:, 1], b.sum(0))
    assert (table[:, 0] == 7).all()
    assert (table[:, 2] == 7).all()
    passed("sum", "float32", "out")


def test_cpu_tensor_is_refused() -> None:
    """An input that is not on a GPU is an error before any launch, and the next call works."""
    with pytest.raises((aot.errors.AotError, RuntimeError, TypeError)):
        aot.ops.sum(torch.ones(3))
    assert aot.ops.sum(torch.ones(3, device="cuda")).item() == 3


@pytest.mark.no_launch
def test_opening_a_bundle_touches_no_gpu(bundle: aot.Bundle) -> None:
    """Field case C09: import and open leave CUDA untouched, so a fork can still use it."""
    code = f"""
import os, torch, aot
opened = aot.open({str(bundle.reader.path)!r}); opened.kernels
assert not torch.cuda.is_initialized()
assert "libcuda.so" not in open("/proc/self/maps").read() or not torch.cuda.is_initialized()
pid = os.fork()
if pid == 0:
    aot.use(opened)
    os._exit(0 if aot.ops.sum(torch.ones(5, device="cuda")).item() == 5 else 1)
assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
