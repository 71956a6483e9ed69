"""What a launch asks of torch: the current stream, and memory for scratch.

torch is the user's own. It is never imported here: whoever passes a tensor has it.
"""

from __future__ import annotations

import sys
from typing import Any


def is_tensor(value: object) -> bool:
    """Is ``value`` a ``torch.Tensor``?"""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def current_stream(device: int) -> int:
    """Return the handle of torch's current stream on CUDA device ``device``, 0 for the default stream."""
    torch: Any = sys.modules["torch"]
    # The public call builds a Stream object, which costs as much as the rest of a launch.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(device)) if raw is not None else int(torch.cuda.current_stream(device).cuda_stream)


def current_device() -> int | None:
    """Return torch's current CUDA device, or None where torch has not started CUDA."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def allocate(size: int, device: int, stream: int) -> Any:
    """Return a uint8 tensor of ``size`` bytes on ``device``, which ``stream`` may use at once and
    may still be using when the tensor is dropped."""
    torch: Any = sys.modules["torch"]
    if stream == current_stream(device):
        return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
        return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
