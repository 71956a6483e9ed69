"""PyTorch's own sample inputs for the operations that ``aot.ops`` serves.

``torch.testing._internal`` is what PyTorch's test suite tests ATen with. Each case is a call
of torch's function and the same call of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

OPS: tuple[tuple[str, str], ...] = (
    ("sum", ""),
    ("mean", ""),
    ("prod", ""),
    ("amax", ""),
    ("amin", ""),
    ("max", "reduction_with_dim"),
    ("max", "reduction_no_dim"),
    ("min", "reduction_with_dim"),
    ("min", "reduction_no_dim"),
    ("argmax", ""),
    ("argmin", ""),
    ("any", ""),
    ("all", ""),
)
"""Name and variant of each operation in ``op_db``."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """``torch.<op>(input, *args, **kwargs)``; ``label`` says which sample of which dtype it is."""

    label: str
    op: str
    input: torch.Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def expected(self) -> Any:
        """torch's answer. Raises what torch raises."""
        return getattr(torch, self.op)(self.input, *self.args, **self.kwargs)


def dtypes_of(op: str, variant: str, device_type: str) -> frozenset[torch.dtype]:
    """The dtypes that PyTorch says its own operation takes on ``device_type``."""
    return frozenset(_info(op, variant).supported_dtypes(device_type))


def cases(op: str, variant: str, device: str, dtypes: Iterable[torch.dtype]) -> Iterator[Case]:
    """The samples of one operation for each of ``dtypes``, in a fixed order."""
    info = _info(op, variant)
    for dtype in dtypes:
        for i, sample in enumerate(info.sample_inputs(device, dtype, requires_grad=False)):
            yield Case(
                label=f"{op}.{variant or 'default'} {dtype} #{i} {tuple(sample.input.shape)} "
                f"{sample.args} {sample.kwargs}",
                op=op,
                input=sample.input,
                args=tuple(sample.args),
                kwargs=dict(sample.kwargs),
            )


def _info(op: str, variant: str) -> Any:
    # Importing this takes seconds, which only the tests that use it should pay.
    from torch.testing._internal.common_methods_invocations import op_db

    found = [info for info in op_db if (info.name, info.variant_test_name) == (op, variant)]
    assert len(found) == 1, f"op_db has {len(found)} entries of {op!r}, variant {variant!r}"
    return found[0]
