"""Memory that split reductions need beside their result: partial results and counters.

Counters are zero before a launch and the kernel sets them back to zero, so one buffer
serves every launch that is ordered behind the last: one buffer a device and stream. It comes from the
driver and not from torch, whose allocator may be filling a graph's pool at the time; it grows to
powers of two and is kept for the life of the process, because a launch may be using it.

A graph that is being captured gets a buffer of its own for each stream it captures, zeroed once
by the graph itself, so that its replay is right on any stream.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable
from typing import TypeAlias

import torch
from msgspec import Struct

from aot.loader import native
from aot.loader.driver import get_driver


class Capture(Struct, frozen=True):
    """A stream that captures a graph: ``id`` is the capture's, which no other capture has."""

    stream: int
    id: int


class DeviceMemory(Struct, frozen=True):
    """Memory of the driver's, which a launch takes as it takes a tensor. ``dtype`` is torch's name."""

    address: int
    dtype: str
    device: torch.device
    size: int

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.address

    def numel(self) -> int:
        """How many elements there are."""
        return self.size


Memory: TypeAlias = "torch.Tensor | DeviceMemory"

_lock = threading.Lock()
_counters: dict[tuple[torch.device, Hashable], Memory] = {}
# The buffer of the last capture on a device. Holding it keeps the graph's pool from giving its
# memory to another tensor of the same graph.
_captured: dict[torch.device, dict[Capture, torch.Tensor]] = {}
_untouched: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

_provided = False

# The native launcher's partial results get at least this many bytes.
_MIN_PARTIALS = 1 << 16

# A counter buffer has at least this many entries.
_MIN_COUNTERS = 1024
_WORD = 4


def counters(device: torch.device, stream: Hashable | None, count: int) -> Memory:
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
                found = _counters[key] = _memory(device, stream, _rounded(count, _MIN_COUNTERS), zero=True)
    return found


def _rounded(count: int, least: int) -> int:
    return max(least, 1 << (count - 1).bit_length())


def _memory(device: torch.device, stream: Hashable, count: int, *, zero: bool) -> Memory:
    """``count`` int32 for launches on ``stream``, a handle; of torch where there is no driver."""
    if device.type != "cuda" or not isinstance(stream, int):
        return (torch.zeros if zero else torch.empty)(count, dtype=torch.int32, device=device)
    driver = get_driver()
    address = driver.allocate(driver.device(device.index), count * _WORD, stream, zero=zero)
    return DeviceMemory(address, "int32", device, count)


def _capture_counters(device: torch.device, capture: Capture, count: int) -> torch.Tensor:
    if "torch._inductor.cudagraph_trees" in sys.modules:
        # The compiler's graphs share a pool, in which nothing may outlive a capture but its outputs.
        return torch.zeros(count, dtype=torch.int32, device=device)
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
    """Return a tensor for a pointer argument that a launch neither reads nor writes. It has no elements:
    a graph that is being captured would own the memory of one that has."""
    key = (device, dtype)
    found = _untouched.get(key)
    if found is None:
        with torch.inference_mode(False):
            found = _untouched.setdefault(key, torch.empty(0, dtype=dtype, device=device))
    return found


def provide() -> None:
    """Let the native launcher ask here for memory."""
    global _provided
    module = native.with_torch()
    if not _provided and module is not None:
        module.provide_workspace(_shared)
        _provided = True


def _shared(device: int, stream: int, count: int, size: int) -> tuple[int, int, int, int, object]:
    """Memory for the native launcher's split launches on a stream, torch's current one of the device:
    (address of the counters, their number, address of the partial results, bytes, what owns both)."""
    count, size = _rounded(count, _MIN_COUNTERS), _rounded(size, _MIN_PARTIALS)
    where = torch.device(native.device_type, device)
    zeros = _memory(where, stream, count, zero=True)
    partials = _memory(where, stream, size // _WORD, zero=False)
    # The driver's memory is nobody's: it stays.
    owned = tuple(memory for memory in (zeros, partials) if isinstance(memory, torch.Tensor))
    return zeros.data_ptr(), count, partials.data_ptr(), size, owned
