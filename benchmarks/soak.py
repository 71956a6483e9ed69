"""A million calls of everything at once, results checked, memory watched: ``python -m benchmarks.soak``.

Threads, each on a stream of its own, call operations, operations on parts of their tensors (shapes that
the caches have not seen), prepared calls with and without ``out``, and a kernel; another thread replays a
captured graph over changing data. Every sixteenth call and every replay is compared with the right answer,
on the GPU, so that nothing waits for it. Then a bundle is opened, preloaded and closed 50 times. Ends with
status 1 where a result was wrong, a call failed or memory grew. Needs a GPU, torch, and the bundles of
``make bundle bundle-benchmarks``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import aot
from aot.loader import native
from benchmarks.dispatch import versions
from benchmarks.soakcases import DTYPES, Case, cases

THREADS = 8
CHECK_EVERY = 16
REPLAYS = 5_000
REOPENINGS = 50
# Growth that is none: arenas of the allocators, which grow in steps.
SLACK = 16 * 2**20
# A part is often a shape that no table has, and then costs as much as fifty others.
MODES = (*["op"] * 8, *["held"] * 8, *["held out"] * 4, *["kernel"] * 4, "part")


def used_memory() -> dict[str, int]:
    """Bytes in use: of this process (RSS), of the device, and of torch's allocator."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    free, total = torch.cuda.mem_get_info()
    return {"rss": resident, "device": total - free, "torch": torch.cuda.memory_reserved()}


def as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    """One or two results as a tuple."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


class Worker(threading.Thread):
    """One thread with a stream: the ``calls`` it made, how many it ``checked``, how many elements were
    ``wrong``, the ``error`` that ended it."""

    def __init__(self, work: list[Case], kernel: aot.Kernel, target: int, seed: int) -> None:
        super().__init__(name=f"soak-{seed}")
        self.work, self.kernel, self.target = work, kernel, target
        self.random = random.Random(seed)
        self.calls = self.checked = self.wrong = 0
        self.error: str | None = None

    def run(self) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                # What is read was written on another stream.
                torch.cuda.synchronize()
                self.bad = torch.zeros((), dtype=torch.int64, device="cuda")
                self.outs: dict[int, tuple[torch.Tensor, ...]] = {}
                self.products = Products(self.kernel)
                while self.calls < self.target:
                    self.step()
                self.wrong = int(self.bad.item())
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def step(self) -> None:
        """One call."""
        mode = self.random.choice(MODES)
        self.calls += 1
        check = self.calls % CHECK_EVERY == 0
        if mode == "kernel":
            result, expected = self.products.call(self.random, check)
        else:
            index = self.random.randrange(len(self.work))
            result, expected = self.op(mode, index)
        if check:
            self.checked += 1
            self.compare(as_tuple(result), expected)

    def op(self, mode: str, index: int) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """A call of an operation, and what it should give."""
        case = self.work[index]
        if mode == "part" and case.rows:
            rows = self.random.randint(1, case.rows)
            part = tuple(expected[:rows] for expected in case.expected)
            return case.call(case.x[:rows], case.dim), part
        if mode == "held":
            return case.held(case.x), case.expected
        if mode == "held out":
            outs = self.outs.get(index)
            if outs is None:
                outs = self.outs[index] = tuple(torch.empty_like(e) for e in case.expected)
            return case.held(case.x, out=outs if len(outs) > 1 else outs[0]), case.expected
        return (case.call(case.x) if case.dim is None else case.call(case.x, case.dim)), case.expected

    def compare(self, found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
        """Count the elements that differ, on this thread's stream."""
        for result, wanted in zip(found, expected, strict=True):
            if result.dtype != wanted.dtype or result.shape != wanted.shape:
                raise AssertionError(
                    f"found {result.dtype} {result.shape}, wanted {wanted.dtype} {wanted.shape}"
                )
            self.bad += (result != wanted).sum()


class Products:
    """The 19-argument kernel over a part of its tensors, whichever the caller's random numbers choose."""

    ROWS, COLS = 64, 1000

    def __init__(self, kernel: aot.Kernel) -> None:
        shape = (self.ROWS, self.COLS)
        self.kernel = kernel
        self.inputs = [torch.randint(-4, 5, shape, device="cuda").float() for _ in range(4)]
        a, b, c, d = self.inputs
        self.whole = torch.relu(a * b + c * d)
        self.out = torch.zeros(shape, device="cuda")

    def call(self, choose: random.Random, check: bool) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Launch, and return the part that was written and what it should be."""
        row, col = choose.randrange(self.ROWS - 1), choose.randrange(self.COLS - 1)
        rows, cols = choose.randint(1, self.ROWS - row), choose.randint(1, self.COLS - col)
        if check:
            self.out.fill_(-1)
        strides = (self.COLS,) * 5
        constexprs = {"BLOCK_ROWS": 16, "BLOCK_COLS": 128, "NEGATE": False, "RELU": True, "ACCUMULATE": False}
        grid = (-(-rows // 16), -(-cols // 128))
        self.kernel[grid](*self.inputs, self.out, row, col, rows, cols, *strides, **constexprs)
        if not check:
            return self.out, (self.out,)
        expected = torch.full_like(self.out, -1)
        here = slice(row, row + rows), slice(col, col + cols)
        expected[here] = self.whole[here]
        return self.out, (expected,)


class Replayer(threading.Thread):
    """Replays one graph over two sets of values in turn, at least ``least`` times and until told to stop."""

    def __init__(self, first: list[Case], second: list[Case], least: int) -> None:
        super().__init__(name="soak-replay")
        self.sets = (first, second)
        self.least = least
        self.replays = self.wrong = 0
        self.stop = threading.Event()
        self.error: str | None = None
        self.stream = torch.cuda.Stream()
        self.inputs = [case.x.clone(memory_format=torch.preserve_format) for case in first]
        self.graph = torch.cuda.CUDAGraph()
        self.results: list[tuple[torch.Tensor, ...]] = []
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=self.stream):
            for case, x in zip(first, self.inputs, strict=True):
                self.results.append(as_tuple(case.call(x) if case.dim is None else case.call(x, case.dim)))

    def run(self) -> None:
        try:
            with torch.cuda.stream(self.stream):
                bad = torch.zeros((), dtype=torch.int64, device="cuda")
                while self.replays < self.least or not self.stop.is_set():
                    chosen = self.sets[self.replays % 2]
                    for x, case in zip(self.inputs, chosen, strict=True):
                        x.copy_(case.x)
                    self.graph.replay()
                    self.replays += 1
                    for results, case in zip(self.results, chosen, strict=True):
                        for result, wanted in zip(results, case.expected, strict=True):
                            bad += (result != wanted).sum()
                self.wrong = int(bad.item())
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"


def growth(samples: list[dict[str, int]]) -> dict[str, dict[str, int]]:
    """Each kind of memory: the most in the second quarter of the time, and in the last."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    found = {}
    for kind in samples[0]:
        before, after = max(s[kind] for s in early), max(s[kind] for s in late)
        found[kind] = {"early": before, "late": after, "grown": after - before}
    return found


def reopen(path: str) -> dict[str, dict[str, int]]:
    """Open, preload and close a bundle over and over; how memory grew after the second time."""
    samples = []
    for _ in range(REOPENINGS):
        with aot.open(path) as bundle:
            bundle.preload()
        torch.cuda.synchronize()
        samples.append(used_memory())
    second, last = samples[1], samples[-1]
    return {
        kind: {"early": second[kind], "late": last[kind], "grown": last[kind] - second[kind]}
        for kind in second
    }


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything and return the summary."""
    reductions = aot.use(options.reductions)
    kernels = aot.open(options.kernels)
    kernel = kernels.kernel("add_products")
    first, second = list(cases(seed=1)), list(cases(seed=2))
    # Every kernel is loaded before memory is watched, and so before the graph is captured.
    reductions.preload()
    kernels.preload()
    for case in first:
        case.held(case.x)
    in_graph = slice(None, None, max(1, len(first) // 40))
    replayer = Replayer(first[in_graph], second[in_graph], options.replays)
    share = -(-options.calls // THREADS)
    workers = [Worker(first if seed % 2 else second, kernel, share, seed) for seed in range(THREADS)]
    launches = reductions.stats()["launches"] + kernels.stats()["launches"]
    samples: list[dict[str, int]] = []
    started = time.monotonic()
    for thread in (replayer, *workers):
        thread.start()
    while any(worker.is_alive() for worker in workers):
        samples.append(used_memory())
        time.sleep(0.5)
    replayer.stop.set()
    replayer.join()
    seconds = time.monotonic() - started
    samples.append(used_memory())
    launches = reductions.stats()["launches"] + kernels.stats()["launches"] - launches
    errors = [thread.error for thread in (replayer, *workers) if thread.error is not None]
    return {
        "calls": sum(worker.calls for worker in workers),
        "launches": launches,
        "checked": sum(worker.checked for worker in workers),
        "replays": replayer.replays,
        "replayed_launches": replayer.replays * len(replayer.results),
        "wrong": replayer.wrong + sum(worker.wrong for worker in workers),
        "errors": errors,
        "seconds": round(seconds, 1),
        "threads": THREADS + 1,
        "streams": THREADS + 1,
        "cases": len(first),
        "ops": len({case.op for case in first}),
        "dtypes": len(DTYPES),
        "layouts": len({case.geometry for case in first}),
        "memory": growth(samples),
        "reopenings": REOPENINGS,
        "reopened": {} if errors else reopen(options.reductions),
        "slack": SLACK,
    }


def sound(result: dict[str, Any]) -> bool:
    """Whether every call launched a prebuilt kernel, and nothing was wrong, failed or grew."""
    grown = [kind["grown"] for part in ("memory", "reopened") for kind in result[part].values()]
    ran = result["launches"] >= result["calls"]
    return ran and not result["wrong"] and not result["errors"] and max(grown) <= result["slack"]


def main() -> None:
    """Soak, print the summary, write it, exit with 1 where it is not sound."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--replays", type=int, default=REPLAYS)
    parser.add_argument("--reductions", default=os.environ.get("AOT_BUNDLE_PATH", "dist/reductions"))
    parser.add_argument("--kernels", default="dist/benchmark-kernels")
    options = parser.parse_args()
    summary = soak(options)
    result = {
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "launcher": native.reason(),
        **summary,
        "sound": sound(summary),
    }
    text = json.dumps(result, indent=1)
    options.output.write_text(text + "\n", encoding="utf-8")
    print(text)
    if not result["sound"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
