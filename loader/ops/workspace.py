"""Memory that split reductions need beside their result: partial results and counters.

Counters are zero before a launch and the kernel sets them back to zero, so one buffer
serves every launch that is ordered behind the last: one buffer a device and stream. A
graph that is being captured gets a buffer of its own for each stream it captures, zeroed once
by the graph itself, so that its replay is right on any stream.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Capture:
    """A stream that captures a graph: ``id`` is the capture's, which no other capture has."""

    stream: int
    id: int


_lock = threading.Lock()
_counters: dict[tuple[torch.device, Hashable], torch.Tensor] = {}
# The buffer of the last capture on a device. Holding it keeps the graph's pool from giving its
# memory to another tensor of the same graph.
_captured: dict[torch.device, dict[Capture, torch.Tensor]] = {}
_untouched: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

# A counter buffer grows to a power of two and at least this many entries.
_MIN_COUNTERS = 1024


def counters(device: torch.device, stream: Hashable | None, count: int) -> torch.Tensor:
    """Return at least ``count`` int32 zeros on ``device`` for launches ordered by ``stream``.

    ``stream`` is a :class:`Capture` while a graph is captured. None: it is captured, and nothing
    is known about it; the buffer then is this launch's alone.
    """
    if stream is None:
        return torch.zeros(count, dtype=torch.int32, device=device)
    if isinstance(stream, Capture):
        return _capture_counters(device, stream, count)
    if device in _captured:
        # That capture is over, or goes on elsewhere: then its next launch takes another buffer.
        with _lock:
            _captured.pop(device, None)
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


def _capture_counters(device: torch.device, capture: Capture, count: int) -> torch.Tensor:
    with _lock:
        held = _captured.get(device, {})
        if any(other.id != capture.id for other in held):
            held = {}
        _captured[device] = held
        found = held.get(capture)
        if found is None or found.numel() < count:
            # Captured launches on this stream come after the zeros, whatever they are.
            found = torch.zeros(max(_MIN_COUNTERS, count), dtype=torch.int32, device=device)
            held[capture] = found
        return found


def untouched(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a tiny tensor for a pointer argument that a launch neither reads nor writes."""
    key = (device, dtype)
    found = _untouched.get(key)
    if found is None:
        with torch.inference_mode(False):
            found = _untouched.setdefault(key, torch.empty(16, dtype=dtype, device=device))
    return found
