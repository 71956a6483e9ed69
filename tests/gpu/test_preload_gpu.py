"""Preloading on the card: captures without a call before, one load each, memory flat.

What has to begin with nothing loaded runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch

import aot

PRELUDE = """
import sys, threading
sys.modules["triton"] = None
import torch
import aot

bundle = aot.use(sys.argv[1])


def launched(before, wanted):
    found = bundle.stats()["launches"] - before["launches"]
    assert found == wanted, f"found {found} launches of prebuilt kernels, wanted {wanted}"
"""


def alone(bundle: aot.Bundle, script: str) -> None:
    """Run a script in a new process, with ``bundle`` opened anew there; it must end well."""
    code = PRELUDE + textwrap.dedent(script) + "\nprint('done')\n"
    path = os.path.abspath(bundle.reader.path)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "done"


@pytest.mark.no_launch
def test_a_refused_capture_names_the_preload_that_helps(bundle: aot.Bundle, passed: Any) -> None:
    """Field cases C10 and C11: refused with the line; after the line a capture needs no call before it; 1,000
    replays with new data are right."""
    alone(
        bundle,
        """
        import warnings

        x = torch.randn(256, 4096, device="cuda")
        torch.cuda.synchronize()
        message = ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that the graph is empty.
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    aot.ops.sum(x, -1)
            except aot.errors.LaunchError as error:
                message = str(error)
        assert "is not loaded yet, and the stream is being captured" in message, message
        line = message.split("begins: ")[1]
        assert line == 'bundle.preload(kernels=["reduce_rows"], dtypes=["float32"])', line
        assert bundle.stats()["loads"] == 0
        torch.cuda.synchronize()
        exec(line)

        before = bundle.stats()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = aot.ops.sum(x, -1)
        launched(before, 1)
        assert bundle.stats()["loads"] == before["loads"] > 0
        for replay in range(1000):
            x.normal_()
            graph.replay()
            assert torch.equal(total, aot.ops.sum(x, -1)), replay
            if replay % 100 == 0:
                torch.testing.assert_close(total.double(), x.double().sum(-1), rtol=1e-5, atol=1e-3)
        launched(before, 1001)
        """,
    )
    passed("sum", "float32", "capture after preload")


@pytest.mark.no_launch
def test_a_filter_is_all_that_a_capture_needs(bundle: aot.Bundle, passed: Any) -> None:
    """Rows, columns, strided and whole tensors of the ops and dtypes that were preloaded load nothing."""
    alone(
        bundle,
        """
        torch.cuda.init()
        seen = []
        ops = ["sum", "mean", "max", "argmax"]
        dtypes = ["float32", torch.float16]
        done = bundle.preload(ops=ops, dtypes=dtypes, progress=lambda *at: seen.append(at))
        total = done.loaded + done.already
        assert done.loaded > 0 and done.already == 0, done
        assert done.devices == ("cuda:0",), done
        assert seen[-1][0] == seen[-1][1] >= total, seen[-1]
        again = bundle.preload(ops=ops, dtypes=["float32", "float16"])
        assert (again.loaded, again.already, again.bytes) == (0, total, 0), again

        loads = bundle.stats()["loads"]
        for dtype in (torch.float32, torch.float16):
            x = torch.randn(512, 1024, device="cuda", dtype=dtype)
            views = lambda: (x, x.t(), x[:, ::2], x[1:, 1:])
            def compute(of):
                made = []
                for view in views():
                    for dim in (0, 1):
                        made += [of.sum(view, dim), of.mean(view, dim), *of.max(view, dim)]
                        made += [of.argmax(view, dim)]
                    made += [of.sum(view), of.max(view)]
                return made
            before = bundle.stats()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = compute(aot.ops)
            launched(before, 4 * (2 * 4 + 2))
            for _ in range(3):
                x.normal_()
                graph.replay()
                for mine, torchs in zip(found, compute(torch), strict=True):
                    torch.testing.assert_close(mine, torchs, rtol=2e-3, atol=2e-2)
        assert bundle.stats()["loads"] == loads
        """,
    )
    passed("sum", "float32", "capture after preload by op")


@pytest.mark.no_launch
def test_preload_in_a_capture_is_refused(bundle: aot.Bundle) -> None:
    """Nothing is loaded, and the process goes on."""
    alone(
        bundle,
        """
        x = torch.ones(64, 64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        message = ""
        with torch.cuda.graph(graph):
            doubled = x * 2
            try:
                bundle.preload()
            except aot.errors.LaunchError as error:
                message = str(error)
        assert "is being captured, and nothing can be loaded meanwhile" in message, message
        assert bundle.stats()["loads"] == 0
        graph.replay()
        torch.cuda.synchronize()
        assert (doubled == 2).all()
        before = bundle.stats()
        assert bundle.preload(ops="sum", dtypes="float32").loaded > 0
        assert aot.ops.sum(x).item() == 64 * 64
        launched(before, 1)
        """,
    )


@pytest.mark.no_launch
def test_sixteen_threads_load_once(bundle: aot.Bundle, passed: Any) -> None:
    """Field case C08: threads that never touched CUDA preload and launch at once."""
    alone(
        bundle,
        """
        x = torch.arange(100_000, device="cuda", dtype=torch.float64)
        torch.cuda.synchronize()
        start, loaded, sums, errors = threading.Barrier(16), [], [], []
        before = bundle.stats()
        def work(i):
            start.wait()
            try:
                if i % 2:
                    loaded.append(bundle.preload(ops="sum", dtypes="float64").loaded)
                else:
                    sums.append(aot.ops.sum(x).item())
            except BaseException as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert sums == [99_999 * 50_000.0] * 8, sums
        launched(before, 8)
        loads = bundle.stats()["loads"]
        again = bundle.preload(ops="sum", dtypes="float64")
        assert (again.loaded, again.already) == (0, loads), (again, loads)
        assert sum(loaded) in (loads - 1, loads), (loaded, loads)
        """,
    )
    passed("sum", "float64", "threads and preload")


def test_fifty_times_opened_preloaded_and_closed(bundle: aot.Bundle, passed: Any) -> None:
    """Device memory and open files are as they were after the first time, and nothing is loaded again."""
    x = torch.randn(128, 4096, device="cuda")

    def once() -> int:
        with aot.open(bundle.reader.path) as opened:
            done = opened.preload(kernels=["reduce_rows", "argreduce_rows"])
            torch.testing.assert_close(aot.ops.sum(x, -1), x.sum(-1), rtol=1e-4, atol=1e-3)
            return done.loaded

    def state() -> tuple[int, int]:
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0], len(os.listdir("/proc/self/fd"))

    once()
    free, files = state()
    assert sum(once() for _ in range(50)) == 0
    free_after, files_after = state()
    assert files_after == files
    assert free_after >= free, f"{free - free_after} bytes of device memory are gone"
    passed("sum", "float32", "opened and closed")


def test_a_closed_bundle_leaves_its_graphs_alive(bundle: aot.Bundle, passed: Any) -> None:
    """Nothing is unloaded while a graph may use it: the bundle that a graph was captured from is gone."""
    x = torch.randn(64, 4096, device="cuda")
    opened = aot.open(bundle.reader.path)
    opened.preload(ops="sum", dtypes=x.dtype)
    aot.use(opened)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = aot.ops.sum(x, -1)
        assert opened.stats()["launches"] == 1
    finally:
        aot.use(bundle)
        opened.close()
    del opened
    for _ in range(100):
        x.normal_()
        graph.replay()
        assert torch.equal(total, aot.ops.sum(x, -1))
    passed("sum", "float32", "graph of a closed bundle")
