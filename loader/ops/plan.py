"""The plan of one launch: everything that follows from shapes, strides and dtypes. Pure.

Planning and launching are apart, so that a plan can be made once and launched many times.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from operator import mul

from msgspec import Struct

from aot.dtypes import DTYPES
from aot.loader.ops.geometry import Reduction, reduction
from aot.loader.ops.splits import SplitPolicy, splits
from aot.loader.ops.table import Op, Types, accumulator, kernel_name

# The dtypes that the cols kernels are built for; the strided ones serve the others.
COLS_DTYPES = frozenset(DTYPES) - {
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "complex32",
}


class LaunchPlan(Struct, frozen=True, kw_only=True):
    """One launch of one kernel.

    ``types`` names the dtypes; the input that is launched on already has ``types.dtype``.
    ``permutation``: the input is first made contiguous in this order of its dimensions
    (None: it is used as it lies). ``scalars`` are the kernel's integer arguments after its
    pointers, splits included. ``divisor`` follows them in the value kernels. ``shape`` is
    that of the result, which is contiguous. ``n_splits`` programs share an output and
    ``accumulator`` is the dtype of their partial results. ``block`` names the constexpr
    that says how many outputs a program holds, all of one run of ``n_inner`` outputs.
    """

    kernel: str
    types: Types
    permutation: tuple[int, ...] | None
    scalars: tuple[int, ...]
    divisor: float
    shape: tuple[int, ...]
    n_out: int
    n_inner: int
    n_splits: int
    accumulator: str
    block: str

    def grid(self, block: int) -> tuple[int, int]:
        """The grid of programs that hold ``block`` outputs each."""
        return self.n_out // self.n_inner * -(-self.n_inner // block), self.n_splits


@lru_cache(maxsize=4096)
def make_plan(
    op: Op,
    types: Types,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    keepdim: bool,
    policy: SplitPolicy,
    aligned: bool = False,
) -> LaunchPlan:
    """Plan ``op`` over ``dims`` of a tensor; dims are in range, sorted and differ.

    ``aligned``: the tensor's first element lies on a 16-byte boundary.
    """
    loops = reduction(shape, strides, dims, ordered=op.family == "index")
    permutation = None
    if loops.layout == "copy":
        permutation = loops.permutation
        loops = _of_contiguous(loops, shape, len(dims))
    layout = loops.layout
    if layout == "cols" and not (aligned and types.dtype in COLS_DTYPES):
        layout = "strided"
    n_inner = loops.kept[-1][0] if layout == "cols" else loops.n_out
    split = splits(loops.n_out, loops.n_red, layout=layout, policy=policy, n_inner=n_inner)
    scalars: tuple[int, ...] = (loops.n_out, loops.n_red)
    if layout == "rows":
        scalars += (loops.row_stride,)
    else:
        scalars += loops.cols_scalars if layout == "cols" else loops.strided_scalars
    reduced = frozenset(dims)
    return LaunchPlan(
        kernel=kernel_name(op, layout),
        types=types,
        permutation=permutation,
        scalars=(*scalars, split.count, split.size),
        divisor=float(loops.n_red) if op.mean else 1.0,
        shape=tuple(
            1 if d in reduced else size for d, size in enumerate(shape) if keepdim or d not in reduced
        ),
        n_out=loops.n_out,
        n_inner=n_inner,
        n_splits=split.count,
        accumulator=accumulator(types.code, types.dtype),
        block="BLOCK_ROWS" if layout == "rows" else "BLOCK_OUT",
    )


def _of_contiguous(loops: Reduction, shape: tuple[int, ...], n_reduced: int) -> Reduction:
    """The loops over the contiguous copy that ``loops.permutation`` makes."""
    copied = tuple(shape[d] for d in loops.permutation)
    strides = tuple(accumulate((1, *reversed(copied[1:])), mul))[::-1]
    return reduction(copied, strides, range(len(copied) - n_reduced, len(copied)), ordered=True)
