"""Memory that split reductions need beside their result: partial results and counters.

Counters are zero before a launch and the kernel sets them back to zero, so one buffer
serves every launch that is ordered behind the last: one buffer a device and stream. A
graph that is being captured gets a buffer of its own, zeroed by the graph itself, so that
its replay is right on any stream.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

import torch

_lock = threading.Lock()
_counters: dict[tuple[torch.device, Hashable], torch.Tensor] = {}
_untouched: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

# A counter buffer grows to a power of two and at least this many entries.
_MIN_COUNTERS = 1024


def counters(device: torch.device, stream: Hashable | None, count: int) -> torch.Tensor:
    """Return at least ``count`` int32 zeros on ``device`` for launches ordered by ``stream``.

    ``stream`` None: a graph is being captured, and the buffer is the graph's.
    """
    if stream is None:
        return torch.zeros(count, dtype=torch.int32, device=device)
    key = (device, stream)
    found = _counters.get(key)
    if found is None or found.numel() < count:
        with _lock:
            found = _counters.get(key)
            if found is None or found.numel() < count:
                size = max(_MIN_COUNTERS, 1 << (count - 1).bit_length())
                # The buffer that this replaces may still be in use by a launch; the allocator
                # hands its memory out again only behind that launch on the same stream.
                found = torch.zeros(size, dtype=torch.int32, device=device)
                _counters[key] = found
    return found


def untouched(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a tiny tensor for a pointer argument that a launch neither reads nor writes."""
    key = (device, dtype)
    found = _untouched.get(key)
    if found is None:
        with torch.inference_mode(False):
            found = _untouched.setdefault(key, torch.empty(16, dtype=dtype, device=device))
    return found
