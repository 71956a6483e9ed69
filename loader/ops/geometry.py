"""From shape and strides to the shape of the loops a reduction kernel runs. Pure: no torch.

A kernel sees *kept* dimensions (one output each) and *reduced* dimensions. Dimensions of
size 1 are dropped, because torch leaves their strides arbitrary, and neighbours that lie
evenly in memory become one. What is left decides the layout:

``rows``
    at most one kept dimension, and reduced elements that lie next to each other;
``cols``
    a kept dimension whose elements lie next to each other, at most one more around it, and one
    reduced dimension; every stride a multiple of 16 elements, as the kernels' wide loads want it,
    and the inner dimension long enough to keep them busy. ``strided`` serves it as well;
``strided``
    at most three kept and three reduced dimensions with any strides;
``copy``
    more than that: the caller makes the tensor contiguous with its kept dimensions first
    (:attr:`Reduction.permutation`), and what it then has is ``rows``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

Layout = Literal["rows", "cols", "strided", "copy"]
Dim = tuple[int, int]
"""The size of a dimension and its stride, both in elements."""

# How many kept, and how many reduced, dimensions the strided kernels walk.
MAX_DIMS = 3

# What strides and the inner size of the ``cols`` kernels are multiples of, and the least inner size.
COLS_MULTIPLE = 16
COLS_INNER = 64


class Reduction(Struct, frozen=True, kw_only=True):
    """The loops of one reduction.

    ``n_out`` outputs, each of ``n_red`` elements. ``kept`` and ``reduced`` are the merged
    dimensions, outermost first. Output ``k`` in row-major order of ``kept`` is element
    ``k`` of the contiguous output; with ``ordered`` the row-major index over ``reduced`` is
    also the row-major index over the tensor's own reduced dimensions. ``permutation`` puts
    the tensor's kept dimensions before its reduced ones, each group in the tensor's order.
    """

    layout: Layout
    n_out: int
    n_red: int
    kept: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    permutation: tuple[int, ...]

    @property
    def row_stride(self) -> int:
        """Elements from one row to the next in the ``rows`` layout; 0 where there is one row."""
        return self.kept[0][1] if self.kept else 0

    @property
    def cols_scalars(self) -> tuple[int, int, int]:
        """``n_inner, outer_stride, red_stride`` of the cols kernels."""
        return self.kept[-1][0], self.kept[0][1] if len(self.kept) > 1 else 0, self.reduced[0][1]

    @property
    def strided_scalars(self) -> tuple[int, ...]:
        """``k1, k2, ks0, ks1, ks2, r1, r2, rs0, rs1, rs2`` of the strided kernels.

        Kept index ``k = (i0 * k1 + i1) * k2 + i2`` lies at ``i0 * ks0 + i1 * ks1 + i2 * ks2``
        elements; the reduced index likewise.
        """
        scalars: list[int] = []
        for dims in (self.kept, self.reduced):
            padded = [(1, 0)] * (MAX_DIMS - len(dims)) + list(dims)
            scalars += [size for size, _ in padded[1:]]
            scalars += [stride for _, stride in padded]
        return tuple(scalars)


def reduction(
    shape: Sequence[int], strides: Sequence[int], dims: Iterable[int], *, ordered: bool
) -> Reduction:
    """Return the loops that reduce ``dims`` (each in ``range(len(shape))``) of a tensor.

    ``strides`` are in elements and not negative. ``ordered``: the position among the reduced
    elements is part of the answer (argmax), so the reduced dimensions stay in the tensor's
    order. Otherwise they are sorted by stride, so that a dense tensor becomes one run
    whatever its permutation.
    """
    reduced_set = frozenset(dims)
    kept_at = [d for d in range(len(shape)) if d not in reduced_set]
    reduced_at = [d for d in range(len(shape)) if d in reduced_set]
    n_out = math.prod(shape[d] for d in kept_at)
    n_red = math.prod(shape[d] for d in reduced_at)
    permutation = (*kept_at, *reduced_at)
    if n_out == 0 or n_red == 0:
        # No element is read: an output that exists is the identity of the operation.
        kept_dims: tuple[Dim, ...] = ((n_out, 0),) if n_out > 1 else ()
        return Reduction(
            layout="rows",
            n_out=n_out,
            n_red=n_red,
            kept=kept_dims,
            reduced=((n_red, 1),) if n_red > 1 else (),
            permutation=permutation,
        )
    kept = _merge((shape[d], strides[d]) for d in kept_at)
    reduced = [(shape[d], strides[d]) for d in reduced_at if shape[d] != 1]
    if not ordered:
        # Repeated elements (stride 0) go outermost, so that the inner loop still runs along memory.
        reduced.sort(key=lambda dim: -dim[1] if dim[1] else -math.inf)
    merged = _merge(reduced)
    layout: Layout
    if len(kept) <= 1 and (not merged or (len(merged) == 1 and merged[0][1] == 1)):
        layout = "rows"
    elif _is_cols(kept, merged):
        layout = "cols"
    elif len(kept) <= MAX_DIMS and len(merged) <= MAX_DIMS:
        layout = "strided"
    else:
        layout = "copy"
    return Reduction(
        layout=layout, n_out=n_out, n_red=n_red, kept=kept, reduced=merged, permutation=permutation
    )


def _is_cols(kept: tuple[Dim, ...], reduced: tuple[Dim, ...]) -> bool:
    if len(reduced) != 1 or not 1 <= len(kept) <= 2:
        return False
    (n_inner, inner_stride), (_, red_stride) = kept[-1], reduced[0]
    outer_stride = kept[0][1] if len(kept) > 1 else 0
    return (
        inner_stride == 1
        and red_stride != 0
        and n_inner >= COLS_INNER
        and n_inner % COLS_MULTIPLE == red_stride % COLS_MULTIPLE == outer_stride % COLS_MULTIPLE == 0
    )


def _merge(dims: Iterable[Dim]) -> tuple[Dim, ...]:
    """Drop dimensions of size 1 and join each to the one before it where the two are one run."""
    merged: list[Dim] = []
    for size, stride in dims:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return tuple(merged)
