"""Calls of shapes that were never seen: the first call of each, and a caller whose shapes never repeat."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import aot
from benchmarks.launches import Launch

FIRST = 300
CHURN = 20_000
CHUNK = 200
# Row lengths that one variant serves, so that a new shape is new to the caches and loads no cubin.
_COLS = [cols for cols in range(513, 1000) if cols % 16]


def tensors(start: int, count: int) -> list[torch.Tensor]:
    """Contiguous fp32 tensors over one memory, each of a shape that no other ``start`` gives."""
    shapes = ((rows, cols) for rows in range(9, 120) for cols in _COLS)
    memory = torch.randn(120 * 1000, device="cuda")
    return [memory[: r * c].view(r, c) for r, c in itertools.islice(shapes, start, start + count)]


def first_calls(launch: Launch, *, eager: bool, jit: bool) -> list[dict[str, Any]]:
    """Microseconds of the first call of a shape, the median of ``FIRST`` shapes, each call timed alone.

    For a kernel a new shape is a new pair of sizes among its 19 arguments.
    """
    inputs = tensors(0, FIRST)
    others = tensors(FIRST, FIRST)
    # Odd and more than 1: Triton's JIT compiles again for 1 and for multiples of 16.
    sizes = [(3 + 2 * (i % 30), 3 + 2 * (i // 30)) for i in range(FIRST)]
    calls: dict[str, Sequence[Callable[[], Any]]] = {
        "aot.ops.sum(x, -1)": [lambda x=x: aot.ops.sum(x, -1) for x in inputs],
        "aot.ops.sum.prepare(x, dim=-1)": [lambda x=x: aot.ops.sum.prepare(x, dim=-1) for x in others],
        "kernel[grid](…), 19 arguments": [_resized(launch, launch.kernel, size) for size in sizes],
    }
    if eager:
        calls["torch.sum(x, -1)"] = [lambda x=x: torch.sum(x, -1) for x in inputs]
    if jit:
        calls["jit[grid](…), 19 arguments"] = [_resized(launch, launch.jit, size) for size in sizes]
    return [{"path": name, "us": _each_alone(made)} for name, made in calls.items()]


def _resized(launch: Launch, kernel: Any, size: tuple[int, int]) -> Callable[[], Any]:
    numbers = (*launch.numbers[:2], *size, *launch.numbers[4:])
    args = dataclasses.replace(launch, numbers=numbers).args
    return lambda: kernel[launch.grid](*args, **launch.constexprs)


def _each_alone(calls: Sequence[Callable[[], Any]]) -> float:
    seconds = []
    for call in calls:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def churn(ours_only: bool) -> list[dict[str, Any]]:
    """Mean microseconds of a call where each has a new shape: ``CHURN`` of them, far more than a cache keeps.

    Every 50th result is compared with torch's of the same values in fp64.
    """
    inputs = tensors(2 * FIRST, CHURN)
    paths: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    paths["aot.ops.sum(x, -1)"] = lambda x: aot.ops.sum(x, -1)
    if not ours_only:
        paths["torch.sum(x, -1)"] = lambda x: torch.sum(x, -1)
    rows = []
    for name, call in paths.items():
        seconds = 0.0
        wrong = 0
        for begin in range(0, CHURN, CHUNK):
            chunk = inputs[begin : begin + CHUNK]
            torch.cuda.synchronize()
            start = time.perf_counter()
            results = [call(x) for x in chunk]
            seconds += time.perf_counter() - start
            wrong += sum(
                not torch.allclose(result.double(), x.double().sum(-1), rtol=1e-5, atol=1e-4)
                for x, result in zip(chunk[::50], results[::50], strict=True)
            )
        rows.append({"path": name, "us": seconds / CHURN * 1e6, "shapes": CHURN, "wrong": wrong})
    return rows
