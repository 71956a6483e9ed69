"""The plan of one launch: everything that follows from shapes, strides and dtypes. Pure.

Planning and launching are apart, so that a plan can be made once and launched many times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul

from aot.loader.ops.geometry import Reduction, reduction
from aot.loader.ops.splits import SplitPolicy, splits
from aot.loader.ops.table import Op, Types, accumulator


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One launch of one kernel.

    ``types`` names the dtypes; the input that is launched on already has ``types.dtype``.
    ``permutation``: the input is first made contiguous in this order of its dimensions
    (None: it is used as it lies). ``scalars`` are the kernel's integer arguments after its
    pointers, splits included. ``divisor`` follows them in the value kernels. ``shape`` is
    that of the result, which is contiguous. ``n_splits`` programs share an output and
    ``accumulator`` is the dtype of their partial results. ``block`` names the constexpr
    that says how many outputs a program holds.
    """

    kernel: str
    types: Types
    permutation: tuple[int, ...] | None
    scalars: tuple[int, ...]
    divisor: float
    shape: tuple[int, ...]
    n_out: int
    n_splits: int
    accumulator: str
    block: str

    @property
    def by_index(self) -> bool:
        """Whether the kernel finds positions (argmax, argmin) beside values."""
        return self.kernel.startswith("arg")


@lru_cache(maxsize=4096)
def make_plan(
    op: Op,
    types: Types,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    keepdim: bool,
    policy: SplitPolicy,
) -> LaunchPlan:
    """Plan ``op`` over ``dims`` of a tensor; dims are in range, sorted and differ."""
    loops = reduction(shape, strides, dims, ordered=op.family == "index")
    permutation = None
    if loops.layout == "copy":
        permutation = loops.permutation
        loops = _of_contiguous(loops, shape, len(dims))
    rows = loops.layout == "rows"
    split = splits(loops.n_out, loops.n_red, rows=rows, policy=policy)
    scalars: tuple[int, ...] = (loops.n_out, loops.n_red)
    scalars += (loops.row_stride,) if rows else loops.strided_scalars
    kernel = ("argreduce" if op.family == "index" else "reduce") + ("_rows" if rows else "_strided")
    reduced = frozenset(dims)
    return LaunchPlan(
        kernel=kernel,
        types=types,
        permutation=permutation,
        scalars=(*scalars, split.count, split.size),
        divisor=float(loops.n_red) if op.mean else 1.0,
        shape=tuple(
            1 if d in reduced else size for d, size in enumerate(shape) if keepdim or d not in reduced
        ),
        n_out=loops.n_out,
        n_splits=split.count,
        accumulator=accumulator(types.code, types.dtype),
        block="BLOCK_ROWS" if rows else "BLOCK_OUT",
    )


def _of_contiguous(loops: Reduction, shape: tuple[int, ...], n_reduced: int) -> Reduction:
    """The loops over the contiguous copy that ``loops.permutation`` makes."""
    copied = tuple(shape[d] for d in loops.permutation)
    strides = tuple(accumulate((1, *reversed(copied[1:])), mul))[::-1]
    return reduction(copied, strides, range(len(copied) - n_reduced, len(copied)), ordered=True)
