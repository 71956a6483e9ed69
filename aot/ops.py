"""Reductions with torch's signatures and semantics, from prebuilt kernels.

``aot.ops.sum(x, dim=-1)`` is called as ``torch.sum`` is, on CUDA tensors. Importing this
module imports torch, which is the user's own to install.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "aot.ops works on torch's tensors, and torch is not installed; install the build of "
        "torch that fits your CUDA driver (aot-kernels does not choose one for you)",
        name=error.name,
    ) from None

from aot.loader.ops.operation import operation as _operation

__all__ = ["all", "amax", "amin", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum"]

sum = _operation("sum")
mean = _operation("mean")
prod = _operation("prod")
amax = _operation("amax")
amin = _operation("amin")
max = _operation("max")
min = _operation("min")
argmax = _operation("argmax")
argmin = _operation("argmin")
any = _operation("any")
all = _operation("all")
