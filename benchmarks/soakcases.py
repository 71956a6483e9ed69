"""Calls with one right answer each: every op, dtype and way to lie in memory, on small whole numbers.

Sums and products of them are exact in every dtype that a result may have, or rounded once, so a result is
compared with the reference for equality. References are computed on the CPU in fp64 or int64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import aot

OPS = ("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all")
DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
# Shape and dim of: short rows, rows that are split, columns, middle dimension, everything.
GEOMETRIES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "rows": ((48, 1000), -1),
    "whole tiles": ((48, 1024), -1),
    "split rows": ((4, 65_536), -1),
    "columns": ((256, 512), 0),
    "transposed": ((33, 6, 64), 1),
    "everything": ((131_072,), None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``op(x, dim)`` gives ``expected``: one tensor, or two. ``held`` is the same call, prepared."""

    op: str
    geometry: str
    x: torch.Tensor
    dim: int | None
    expected: tuple[torch.Tensor, ...]
    call: Any
    held: Any

    @property
    def rows(self) -> int:
        """How many leading rows a part of ``x`` can have and still be a case, 0 for none."""
        return len(self.x) if self.dim == -1 else 0


def served(op: str, dtype: torch.dtype, geometry: str) -> bool:
    """Whether there is such a case. A mean of 1000 or 6 numbers would be rounded."""
    if op == "mean":
        return dtype.is_floating_point and geometry not in ("rows", "transposed")
    if dtype.is_complex:
        return op in ("sum", "prod", "any", "all")
    return not (op in ("max", "min") and geometry == "everything")


def cases(seed: int) -> Iterator[Case]:
    """Every case, with values that ``seed`` decides."""
    generator = torch.Generator().manual_seed(seed)
    for op, dtype, (geometry, (shape, dim)) in itertools.product(OPS, DTYPES, GEOMETRIES.items()):
        if not served(op, dtype, geometry):
            continue
        x = values(op, dtype, shape, generator)
        if geometry == "transposed":
            x = x.transpose(0, 2)
        call = getattr(aot.ops, op)
        on_gpu = x.cuda()
        yield Case(
            op=op,
            geometry=geometry,
            x=on_gpu,
            dim=dim,
            expected=tuple(result.cuda() for result in reference(op, x, dim)),
            call=call,
            held=call.prepare(on_gpu, dim=dim),
        )


def values(op: str, dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Whole numbers for which ``op`` says something: signs for products, few ones or zeros for any and
    all."""
    if op == "prod":
        low, high = (1, 2) if dtype in (torch.uint8, torch.bool) else (0, 2)
        made = torch.randint(low, high, shape, generator=generator) * 2 - 1
    elif op in ("any", "all"):
        rare = torch.rand(shape, generator=generator) < 1e-3
        made = rare.long() if op == "any" else 1 - rare.long()
    else:
        made = torch.randint(0 if dtype == torch.uint8 else -3, 4, shape, generator=generator)
    return made.to(dtype)


def reference(op: str, x: torch.Tensor, dim: int | None) -> tuple[torch.Tensor, ...]:
    """What torch's function of that name returns, without the rounding on its way."""
    dtype = x.dtype
    kind = torch.complex128 if dtype.is_complex else torch.float64
    wide = x.to(kind if dtype.is_complex or dtype.is_floating_point else torch.int64)
    function: Callable[..., Any] = getattr(torch, op)
    if op in ("any", "all"):
        return (function(x, dim=dim) if dim is not None else function(x),)
    if op in ("argmax", "argmin"):
        return (function(wide, dim=dim),)
    if op in ("max", "min"):
        found = function(wide, dim=dim)
        return found.values.to(dtype), found.indices
    result = function(wide, dim=dim) if dim is not None else function(wide)
    if op in ("sum", "prod") and not (dtype.is_floating_point or dtype.is_complex):
        return (result,)
    return (result.to(dtype),)
