"""``out=`` as torch means it: dtype rules, resizing, strides, and memory shared with the input."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from aot.dtypes import DTYPES
from aot.loader.ops import wording
from aot.loader.ops.arguments import check_kind
from aot.loader.ops.table import Op, is_integral


def check_out(op: Op, out: Any, source: torch.Tensor, device_type: str) -> None:
    """Check what does not depend on the result: that ``out`` is a tensor that can be written.

    Raises ``TypeError``, ``LaunchError`` or ``RuntimeError``.
    """
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"{op.name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if out.device != source.device:
        raise RuntimeError(wording.out_device(source.device, out.device))
    check_kind(op, "an out tensor", out, device_type)
    if op.differentiable and torch.is_grad_enabled() and (out.requires_grad or source.requires_grad):
        raise RuntimeError(wording.out_needs_grad(op.name))
    if any(stride == 0 and size > 1 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise RuntimeError(wording.out_overlaps_itself())


def result_dtype(op: Op, out: str, requested: str | None, default: str) -> str:
    """Return the dtype to compute for an ``out`` of dtype ``out``; raise ``RuntimeError`` where it does
    not fit. All dtypes are names; ``default`` is the result's without ``out`` and ``dtype``."""
    if requested is not None:
        if out != requested:
            raise RuntimeError(wording.out_dtype(requested, out))
        return out
    if op.family == "sum":
        if op.mean and not _can_cast(default, out):
            raise RuntimeError(wording.out_cast(default, out))
        return out
    if op.family == "truth":
        if out not in ("bool", "uint8"):
            raise RuntimeError(wording.out_truth(op.name, out))
        return out
    if op.name in ("amax", "amin"):
        if out != default:
            raise RuntimeError(wording.out_matches_input(default, out))
        return out
    if op.family == "extremum":
        if not _can_cast(default, out):
            raise RuntimeError(wording.out_cast(default, out))
        return out
    if out != default:
        raise RuntimeError(wording.out_dtype(default, out))
    return out


def _can_cast(source: str, target: str) -> bool:
    """c10's rule: neither complex to real, nor floating to integral, nor anything to bool."""
    if source == target:
        return True
    if target == "bool" or target not in DTYPES:
        return False
    rank = {"complex": 2, "float": 1}
    return is_integral(source) or rank.get(DTYPES[source].kind, 0) <= rank.get(DTYPES[target].kind, 0)


def writable(out: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], *others: torch.Tensor) -> bool:
    """Whether a kernel can write its contiguous result straight into ``out``.

    It can where ``out`` already is that result's shape, dtype and layout, and shares no
    memory with ``others``: programs that are still reading would read what others wrote.
    """
    return (
        out.dtype == dtype
        and out.shape == shape
        and out.is_contiguous()
        and not out.is_conj()
        and not out.is_neg()
        and not any(_overlap(out, other) for other in others)
    )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (a_start, a_end), (b_start, b_end) = _extent(a), _extent(b)
    return a_start < b_end and b_start < a_end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def deliver(out: torch.Tensor, result: torch.Tensor) -> None:
    """Put ``result`` into ``out``, resizing it with torch's warning where the shape differs."""
    if result is out:
        # A kernel wrote it behind autograd's back; saved tensors must still notice.
        if not out.is_inference():
            torch.autograd.graph.increment_version(out)
        return
    if out.shape != result.shape:
        if out.numel():
            warnings.warn(wording.out_resized(list(out.shape), list(result.shape)), stacklevel=4)
        out.resize_(result.shape)
    out.copy_(result)
