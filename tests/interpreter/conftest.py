"""Kernels under Triton's interpreter, on the CPU.

``TRITON_INTERPRET`` is read when a kernel is decorated, Triton's own helpers included, and then
holds for the whole process. So these tests run in a pytest process of their own, with the
variable set: ``TRITON_INTERPRET=1 pytest tests/interpreter``; elsewhere nothing is collected.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

collect_ignore_glob: list[str] = []

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime.interpreter import ReduceOps

    def fold_halves(self: Any, tensors: tuple[Any, ...]) -> list[Any]:
        """``tl.reduce``: combine one half of a tile with the other until one slice is left.

        The interpreter combines element by element, about a millisecond each. This calls the
        same function on whole slices, in a tree as GPUs do, and is a hundred times faster.
        """
        parts = [np.moveaxis(tensor.handle.data, self.axis, 0) for tensor in tensors]
        while (half := len(parts[0]) // 2) > 0:
            pairs = [self.to_tensor(part[:half], t.dtype) for part, t in zip(parts, tensors, strict=True)]
            pairs += [self.to_tensor(part[half:], t.dtype) for part, t in zip(parts, tensors, strict=True)]
            found = self.combine_fn.fn(*pairs)
            parts = [part.handle.data for part in (found if isinstance(found, tuple) else (found,))]
        if self.keep_dims:
            parts = [np.moveaxis(part, 0, self.axis) for part in parts]
        else:
            parts = [part[0] for part in parts]
        return [self.to_tensor(part, t.dtype) for part, t in zip(parts, tensors, strict=True)]

    ReduceOps.generic_reduce = fold_halves
else:
    collect_ignore_glob.append("test_*.py")
