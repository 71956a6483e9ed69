"""The C API on the card: the example program, and ``aot.h`` in this process on torch's memory and streams.

Launches of C are not counted in ``bundle.stats()``; each test looks at numbers that only a kernel can have
written, and the C API has no other kernels than those of the bundle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from capi import EXAMPLE, compiled
from capi.binding import Api, Held, Opened, Refused

pytestmark = [
    pytest.mark.no_launch,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler"),
]

PATH = os.environ.get("AOT_BUNDLE_PATH", "dist/reductions")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Api:
    torch.cuda.init()
    return Api(tmp_path_factory.mktemp("capi"))


@pytest.fixture(scope="module")
def reductions(api: Api) -> Iterator[Opened]:
    opened = api.open(PATH)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def special(api: Api) -> Iterator[Opened]:
    opened = api.open(os.environ.get("AOT_TEST_BUNDLE_PATH", "dist/gpu-tests"))
    yield opened
    opened.close()


def stream_handle() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def prepare_sum(reductions: Opened, x: torch.Tensor, out: torch.Tensor) -> tuple[Held, list[torch.Tensor]]:
    """A prepared sum of the rows of ``x``, and its tensors."""
    tensors = [
        x,
        out,
        torch.empty(1, dtype=torch.float64, device="cuda"),
        torch.zeros(1, dtype=torch.int32, device="cuda"),
    ]
    rows, cols = x.shape
    split = -(-cols // 64) * 64
    named = {"OP": "sum", "DTYPE": "float32", "OUT_DTYPE": "float32"}
    return reductions.prepare(
        "reduce_rows", *tensors, rows, cols, x.stride(0), 1, split, 1.0, **named
    ), tensors


@pytest.mark.parametrize(("rows", "cols"), [(1000, 4096), (7, 5), (100_000, 3), (3, 1 << 20), (257, 1000)])
def test_the_example(tmp_path: Path, passed: Any, rows: int, cols: int) -> None:
    """It checks its own sums and prints them; torch has the same."""
    program = compiled(EXAMPLE, tmp_path / "sum_rows", "-O2", "-Wno-error")
    done = subprocess.run([program, PATH, str(rows), str(cols)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"{rows} rows of {cols}, 0 wrong" in done.stderr
    index = torch.arange(rows * cols, device="cuda")
    x = ((index * 7919 % 1001 - 500).double() / 8).float().view(rows, cols)
    found = torch.tensor([float(line) for line in done.stdout.split()], dtype=torch.float32)
    assert torch.equal(found, x.double().sum(1).float().cpu())
    passed("sum", "float32", "C example")


def test_a_prepared_call_on_a_side_stream(reductions: Opened, passed: Any) -> None:
    """Field case C12: behind the fill, on the stream where both were queued; with new memory every time."""
    x = torch.zeros(300, 4096, device="cuda")
    held, tensors = prepare_sum(reductions, x, torch.empty(300, device="cuda"))
    assert held.symbol() == "reduce_rows"
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for value in range(1, 30):
            y, out = torch.empty_like(x), torch.full((300,), float("nan"), device="cuda")
            torch.cuda._sleep(2_000_000)
            y.fill_(value)
            held(y, out, *tensors[2:], stream=stream_handle())
            assert (out == 4096 * value).all()
    with pytest.raises(Refused, match="x_ptr is not aligned to 16 bytes"):
        held(y.view(-1)[1:], out, *tensors[2:])
    held.free()
    passed("sum", "float32", "C prepared call")


def test_a_captured_graph(reductions: Opened, passed: Any) -> None:
    """Field case C11: prepared before the capture, replayed over new data."""
    x, out = torch.empty(64, 8192, device="cuda"), torch.empty(64, device="cuda")
    held, tensors = prepare_sum(reductions, x, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held(*tensors, stream=stream_handle())
    held.free()
    for _ in range(100):
        x.random_(-1000, 1000)
        graph.replay()
        assert torch.equal(out, x.double().sum(1).float())
    passed("sum", "float32", "C graph replay")


def test_threads(reductions: Opened, passed: Any) -> None:
    """Field case C08: 16 threads that never touched CUDA choose and launch at once."""
    x = torch.randint(-50, 50, (16, 512, 1024), device="cuda").float()
    out = torch.full((16, 512), float("nan"), device="cuda")
    torch.cuda.synchronize()
    barrier = threading.Barrier(16)
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            barrier.wait()
            for _ in range(20):
                held, tensors = prepare_sum(reductions, x[i], out[i])
                held(*tensors)
                torch.cuda.synchronize()
                held.free()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not failures
    assert torch.equal(out, x.sum(2))
    passed("sum", "float32", "C threads")


@pytest.mark.parametrize("k", [1, 32, 7, -(2**40) - 1])
def test_every_scalar_type(special: Opened, k: int) -> None:
    """Field cases B03, B06, B23."""
    out = torch.zeros(16, dtype=torch.float64, device="cuda")
    given = (True, -128, 255, -32768, 65535, 1.5, -2.25, -(2**31), 0.1, 2**32 - 1, 0.5, k)
    torch.cuda.synchronize()
    special.launch("scalars", out, *given, grid=(1,), stream=stream_handle())
    assert out.tolist() == [*map(float, given), 7.0, 7.0, 7.0, 7.0]
    with pytest.raises(Refused, match="a = 128 does not fit int8"):
        special.launch("scalars", out, True, 128, 0, 0, 0, 0.0, 0.0, 0, 0.0, 0, 0.0, 5, grid=(1,))


@pytest.mark.parametrize("num_ctas", [1, 2])
def test_clusters(special: Opened, num_ctas: int) -> None:
    x = torch.randn(100_003, device="cuda")
    out = torch.full_like(x, float("nan"))
    special.launch("scale", x, out, x.numel(), 2.0, stream=stream_handle(), num_ctas=num_ctas)
    assert torch.equal(out, x * 2)


def test_more_than_48_kib_of_shared_memory(special: Opened) -> None:
    """Field case B08."""
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    special.launch("matmul", a, b, c, 512, stream=stream_handle())
    torch.testing.assert_close(c, a @ b, rtol=2e-3, atol=2e-2)


def test_global_scratch(special: Opened) -> None:
    """Field case B02: lent in the order of the stream, many launches in flight."""
    stream = torch.cuda.Stream()
    x = torch.randn(100, 128, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        outs = [torch.zeros_like(x) for _ in range(50)]
        for out in outs:
            special.launch("tiles", x, out, 100, 128, stream=stream_handle())
        for out in outs:
            assert torch.equal(out, x + 1)


def test_a_refusal_leaves_the_process_usable(special: Opened) -> None:
    x = torch.ones(2048, device="cuda")
    out = torch.zeros_like(x)
    with pytest.raises(Refused, match="x_ptr is float32, the call has float64"):
        special.launch("scale", x.double(), out, 2048, 3.0, grid=(2,))
    with pytest.raises(Refused, match="found grid y = 65536, wanted at most 65535"):
        special.launch("scale", x, out, 2048, 3.0, grid=(1, 65536))
    special.launch("scale", x, out, 2048, 3.0, grid=(2,), stream=stream_handle())
    assert (out == 3).all()
