"""Device time of short GPU work, free of the host's part.

A call is captured into a CUDA graph many times over, each launch on another of several equal
inputs, and the replay of the graph is timed by events: the host does nothing between launches.
Before each replay a buffer of four times the L2 cache is written. The inputs together are
larger than the cache too, or each is read once a replay; so every launch reads from memory.
What is reported is a replay's time over its number of launches. It holds everything the GPU does
for a call (conversions, memsets, kernels, the gaps between them) and 1/launches of what starting
a graph takes, some microseconds: less than 0.5 µs a launch for the smallest inputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

MAX_BUFFERS = 64
MIN_LAUNCHES = 16
CACHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Microseconds a launch, over the repeats."""

    median: float
    low: float
    high: float


def l2_bytes() -> int:
    """The size of the current device's L2 cache."""
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def buffers_for(x: torch.Tensor) -> list[torch.Tensor]:
    """``x`` and copies of it: as many as hold ``CACHES`` L2 caches, from 2 to ``MAX_BUFFERS``."""
    size = max(1, x.numel() * x.element_size())
    count = min(MAX_BUFFERS, max(2, -(-CACHES * l2_bytes() // size)))
    return [x, *(x.clone() for _ in range(count - 1))]


def device_times(
    call: Callable[[torch.Tensor], object], buffers: Sequence[torch.Tensor], *, repeats: int = 25
) -> Times:
    """Time ``call`` on each of ``buffers`` in turn."""
    launches = max(MIN_LAUNCHES, len(buffers))
    flush = torch.empty(CACHES * l2_bytes(), dtype=torch.uint8, device=buffers[0].device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for buffer in buffers[:2]:
            call(buffer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    kept: list[object] = []
    with torch.cuda.graph(graph, stream=stream):
        # Results stay alive, so that no launch is given the memory of the one before.
        kept.extend(call(buffers[i % len(buffers)]) for i in range(launches))
    graph.replay()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for start, end in events:
        flush.zero_()
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    found = sorted(start.elapsed_time(end) * 1e3 / launches for start, end in events)
    del kept
    return Times(median=statistics.median(found), low=found[0], high=found[-1])
