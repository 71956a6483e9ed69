"""Where DTensor may leave the shards of an operand: replicated, or sharded along a kept dimension.

Nothing here imports ``torch.distributed.tensor``, which takes a second: the rules are
registered once somebody else has.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from aot.loader.ops.arguments import check_dims
from aot.loader.ops.table import Op

_lock = threading.Lock()
_registered = False


def register_sharding(overloads: dict[Any, Op]) -> None:
    """Tell DTensor about ``overloads`` (each an ``OpOverload``), if it is imported and was not told."""
    global _registered
    if _registered or "torch.distributed.tensor" not in sys.modules:
        return
    with _lock:
        if _registered:
            return
        from torch.distributed.tensor import experimental

        for target, op in overloads.items():
            experimental.register_sharding(target)(_placements(target, op))
        _registered = True


def _placements(target: Any, op: Op) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    outputs = len(target._schema.returns)
    names = [argument.name for argument in target._schema.arguments if not argument.kwarg_only]

    def rule(input: Any, *args: Any, **kwargs: Any) -> list[tuple[list[Any], list[Any]]]:
        given = dict(zip(names[1:], args, strict=False)) | kwargs
        rest = [None] * len(args)
        found: list[tuple[list[Any], list[Any]]] = [([Replicate()] * outputs, [Replicate(), *rest])]
        reduced = check_dims(op, given.get("dim"), (1,) * len(input.shape))
        kept = 0
        for dim in range(len(input.shape)):
            if dim in reduced and not given.get("keepdim", False):
                continue
            if dim not in reduced:
                found.append(([Shard(kept)] * outputs, [Shard(dim), *rest]))
            kept += 1
        return found

    return rule
