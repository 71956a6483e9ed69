"""Host time of short calls: what the caller waits before it can go on.

A batch is some hundred calls, few enough that the driver's queue never fills, and begins with
the GPU idle. The paths take turns, a batch each, so that what changes during the run
(clocks, caches, the machine's neighbours) meets all of them alike. Garbage collection stays on.
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

BATCHES = 100
CALLS = 200
WARM_UP = 20

Batch = Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way to make a call: ``shown`` in tables, ``key`` for what compares paths."""

    key: str
    shown: str
    batch: Batch


def statement(key: str, code: str, names: Mapping[str, Any]) -> Path:
    """A path that is Python code: a batch runs it in a loop that costs some nanoseconds a turn."""
    timer = timeit.Timer(code, "import gc; gc.enable()", globals=dict(names))
    return Path(key=key, shown=code, batch=timer.timeit)


def measure(paths: Sequence[Path], batches: int = BATCHES, calls: int = CALLS) -> list[dict[str, Any]]:
    """Return for each path the microseconds of a call: the median over batches, and their quartiles."""
    seconds: dict[str, list[float]] = {path.key: [] for path in paths}
    for _ in range(batches):
        for path in paths:
            path.batch(WARM_UP)
            torch.cuda.synchronize()
            seconds[path.key].append(path.batch(calls) / calls)
            torch.cuda.synchronize()
    rows = []
    for path in paths:
        low, middle, high = (q * 1e6 for q in statistics.quantiles(seconds[path.key], n=4))
        rows.append({"key": path.key, "path": path.shown, "us": middle, "quartiles": [low, high]})
    return rows
