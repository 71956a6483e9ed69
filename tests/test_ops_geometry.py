"""The loops that a reduction runs, against plain enumeration of every index."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aot.loader.ops.geometry import Layout, Reduction, reduction
from aot.loader.ops.plan import make_plan
from aot.loader.ops.splits import MAX_SPLIT, MAX_SPLITS, MAX_STRIDED_SPLIT, QUANTUM, SplitPolicy, splits
from aot.loader.ops.table import ARGMAX, SUM, resolve

H200 = SplitPolicy(processors=132)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    """The offset of every element, in the shape of the tensor."""
    total = np.zeros(shape, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        reach = [1] * len(shape)
        reach[axis] = size
        total = total + (np.arange(size, dtype=np.int64) * stride).reshape(reach)
    return total


def wanted_offsets(
    shape: tuple[int, ...], strides: tuple[int, ...], dims: frozenset[int]
) -> NDArray[np.int64]:
    """[n_out, n_red] offsets, both indices in the row-major order of the tensor."""
    kept = [d for d in range(len(shape)) if d not in dims]
    reduced = sorted(dims)
    n_out = math.prod(shape[d] for d in kept)
    n_red = math.prod(shape[d] for d in reduced)
    return offsets(shape, strides).transpose((*kept, *reduced)).reshape(n_out, n_red)


def kernel_offsets(loops: Reduction) -> NDArray[np.int64]:
    """[n_out, n_red] offsets, computed as the kernels compute them from their scalars."""
    k = np.arange(loops.n_out, dtype=np.int64)
    r = np.arange(loops.n_red, dtype=np.int64)
    if loops.layout == "rows":
        return k[:, None] * loops.row_stride + r[None, :]
    if loops.layout == "cols":
        n_inner, outer_stride, red_stride = loops.cols_scalars
        return (k // n_inner * outer_stride + k % n_inner)[:, None] + (r * red_stride)[None, :]
    k1, k2, ks0, ks1, ks2, r1, r2, rs0, rs1, rs2 = loops.strided_scalars
    at_k = k // (k1 * k2) * ks0 + k // k2 % k1 * ks1 + k % k2 * ks2
    at_r = r // (r1 * r2) * rs0 + r // r2 % r1 * rs1 + r % r2 * rs2
    return at_k[:, None] + at_r[None, :]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], frozenset[int]]:
    """Shape, strides and reduced dimensions: permuted, sliced, expanded, or of any strides."""
    ndim = draw(st.integers(0, 6))
    shape = [draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 4)) for _ in range(ndim)]
    base = [size + draw(st.sampled_from((0, 0, 0, 2))) for size in shape]
    strides = list(contiguous(tuple(base)))
    for d in range(ndim):
        change = draw(st.integers(0, 11))
        if change == 0:
            strides[d] = 0
        elif change == 1:
            strides[d] = draw(st.integers(0, 50))
        elif change == 2:
            strides[d] *= 2
    order = draw(st.permutations(range(ndim)))
    dims = frozenset(d for d in range(ndim) if draw(st.booleans()))
    return tuple(shape[d] for d in order), tuple(strides[d] for d in order), dims


@settings(max_examples=400, deadline=None)
@given(tensors(), st.booleans())
def test_loops_visit_what_the_tensor_holds(
    case: tuple[tuple[int, ...], tuple[int, ...], frozenset[int]], ordered: bool
) -> None:
    shape, strides, dims = case
    loops = reduction(shape, strides, dims, ordered=ordered)
    wanted = wanted_offsets(shape, strides, dims)
    assert (loops.n_out, loops.n_red) == wanted.shape
    if loops.layout == "copy":
        assert len(loops.kept) > 3 or len(loops.reduced) > 3
        return
    if wanted.size == 0:
        assert loops.layout == "rows"
        return
    found = kernel_offsets(loops)
    if not ordered:
        found, wanted = np.sort(found, axis=1), np.sort(wanted, axis=1)
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from((16, 48, 63, 64, 80, 256)),
    st.sampled_from((0, 0, 16, 3)),
    st.integers(0, 3),
    st.booleans(),
)
def test_columns_are_found_and_visited(
    outer: list[int], inner: int, gap: int, dim: int, ordered: bool
) -> None:
    shape = (*outer, 20, inner)
    strides = contiguous((*outer, 20, inner + gap))
    dims = frozenset({min(dim, len(outer))})
    loops = reduction(shape, strides, dims, ordered=ordered)
    if loops.layout == "cols":
        n_inner, outer_stride, red_stride = loops.cols_scalars
        assert n_inner % 16 == outer_stride % 16 == red_stride % 16 == 0
        assert n_inner >= 64
        assert red_stride != 0
    elif inner >= 64 and dims == {len(outer)}:
        assert len(loops.kept) > 2 or (inner + gap) % 16 or inner % 16
    found, wanted = kernel_offsets(loops), wanted_offsets(shape, strides, dims)
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=200, deadline=None)
@given(tensors(), st.booleans())
def test_a_copy_becomes_rows_in_the_same_order(
    case: tuple[tuple[int, ...], tuple[int, ...], frozenset[int]], ordered: bool
) -> None:
    shape, strides, dims = case
    op = ARGMAX if ordered else SUM
    plan = make_plan(op, resolve(op, "float32", "float32"), shape, strides, tuple(sorted(dims)), False, H200)
    if plan.permutation is None:
        return
    # The copy holds the elements in the order of the permutation, without gaps.
    n_rows, n_cols, row_stride, *_ = plan.scalars
    assert plan.kernel.endswith("_rows")
    copy = offsets(shape, strides).transpose(plan.permutation).reshape(-1)
    rows = np.arange(n_rows)[:, None] * row_stride + np.arange(n_cols)[None, :]
    np.testing.assert_array_equal(copy[rows], wanted_offsets(shape, strides, dims))


@pytest.mark.parametrize(
    ("shape", "strides", "dims", "layout", "kept", "reduced"),
    [
        pytest.param((), (), (), "rows", (), (), id="0-d"),
        pytest.param((8,), (1,), (0,), "rows", (), ((8, 1),), id="vector"),
        pytest.param((8,), (2,), (0,), "strided", (), ((8, 2),), id="every second"),
        pytest.param((4, 5), (5, 1), (1,), "rows", ((4, 5),), ((5, 1),), id="rows"),
        pytest.param((4, 5), (5, 1), (0,), "strided", ((5, 1),), ((4, 5),), id="columns"),
        pytest.param((4, 5), (1, 4), (0,), "rows", ((5, 4),), ((4, 1),), id="columns of a transpose"),
        pytest.param((4, 5), (5, 1), (), "rows", ((20, 1),), (), id="nothing reduced"),
        pytest.param((2, 3, 4), (12, 4, 1), (1, 2), "rows", ((2, 12),), ((12, 1),), id="two inner"),
        pytest.param(
            (2, 3, 4), (12, 4, 1), (0, 2), "strided", ((3, 4),), ((2, 12), (4, 1)), id="outer, inner"
        ),
        pytest.param((2, 3, 4), (12, 4, 1), (1,), "strided", ((2, 12), (4, 1)), ((3, 4),), id="middle"),
        pytest.param((64, 1000), (1, 0), (0, 1), "strided", (), ((1000, 0), (64, 1)), id="expanded"),
        pytest.param((64, 2), (0, 0), (0, 1), "strided", (), ((128, 0),), id="one element expanded"),
        pytest.param((8, 1), (1, 12345), (1,), "rows", ((8, 1),), (), id="size 1 with a wild stride"),
        pytest.param(
            (2, 3, 5, 6), (90, 1, 18, 3), (2, 3), "strided", ((2, 90), (3, 1)), ((30, 3),), id="NHWC"
        ),
        pytest.param(
            (2, 4, 3, 5), (60, 1, 20, 4), (0, 1, 2, 3), "rows", (), ((120, 1),), id="dense, permuted"
        ),
        pytest.param((0, 4), (4, 1), (0,), "rows", ((4, 0),), (), id="nothing to read"),
        pytest.param((50, 64), (64, 1), (0,), "cols", ((64, 1),), ((50, 64),), id="wide columns"),
        pytest.param((50, 64), (65, 1), (0,), "strided", ((64, 1),), ((50, 65),), id="odd row stride"),
        pytest.param((50, 48), (48, 1), (0,), "strided", ((48, 1),), ((50, 48),), id="narrow columns"),
        pytest.param(
            (3, 50, 64), (3200, 64, 1), (1,), "cols", ((3, 3200), (64, 1)), ((50, 64),), id="wide middle"
        ),
        pytest.param((50, 64), (0, 1), (0,), "strided", ((64, 1),), ((50, 0),), id="one row expanded"),
    ],
)
def test_layouts(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    layout: str,
    kept: tuple[tuple[int, int], ...],
    reduced: tuple[tuple[int, int], ...],
) -> None:
    """Field cases A28 to A33: transposed, sliced, expanded, 0-d, size 1, empty."""
    loops = reduction(shape, strides, dims, ordered=False)
    assert (loops.layout, loops.kept, loops.reduced) == (layout, kept, reduced)


def test_positions_keep_the_order_of_the_tensor() -> None:
    loops = reduction((4, 5), (1, 4), (0, 1), ordered=True)
    assert (loops.layout, loops.reduced) == ("strided", ((4, 1), (5, 4)))


def test_more_than_three_loops_are_copied() -> None:
    shape, strides = (2, 2, 2, 2, 3), (1, 2, 4, 8, 16)
    loops = reduction(shape, strides, (4,), ordered=False)
    assert (loops.layout, len(loops.kept)) == ("copy", 4)
    plan = make_plan(SUM, resolve(SUM, "float32", "float32"), shape, strides, (4,), False, H200)
    assert (plan.kernel, plan.permutation) == ("reduce_rows", (0, 1, 2, 3, 4))
    assert plan.scalars == (16, 3, 3, 1, 64)


def test_offsets_beyond_32_bits_stay_whole() -> None:
    """Field cases A35 to A37: the extents and strides of a launch are exact beyond 2**31."""
    deep = reduction((2, 4096), (2**31 + 16, 1), (1,), ordered=False)
    assert (deep.layout, deep.row_stride) == ("rows", 2**31 + 16)
    tall = reduction((64, 2**25 + 1), (2**25 + 1, 1), (0,), ordered=True)
    assert tall.strided_scalars == (1, 2**25 + 1, 0, 0, 1, 1, 64, 0, 0, 2**25 + 1)
    wide = reduction((320, 7864320), (7864320, 1), (0,), ordered=False)
    assert 319 * wide.reduced[0][1] == 2508718080
    whole = reduction((50000, 100000), (100000, 1), (0, 1), ordered=False)
    assert (whole.layout, whole.n_red) == ("rows", 5_000_000_000)


@settings(max_examples=500, deadline=None)
@given(
    st.integers(1, 2**40),
    st.one_of(st.integers(0, 2**20), st.integers(0, 2**38)),
    st.sampled_from(("rows", "cols", "strided")),
    st.integers(1, 200),
    st.integers(1, 8192),
)
def test_splits_cover_every_element_once(
    n_out: int, n_red: int, layout: Layout, processors: int, min_split: int
) -> None:
    policy = SplitPolicy(processors=processors, min_split=min_split)
    found = splits(n_out, n_red, layout=layout, policy=policy)
    assert 1 <= found.count <= MAX_SPLITS
    assert found.size % QUANTUM == 0
    assert 0 < found.size <= (MAX_STRIDED_SPLIT if layout == "strided" else MAX_SPLIT) < 2**31
    assert found.count * found.size >= n_red
    assert (found.count - 1) * found.size < max(n_red, 1)


def test_lanes_of_32_bits_hold_the_sum_of_a_split_of_bytes() -> None:
    assert 255 * MAX_SPLIT < 2**31
    assert 128 * MAX_SPLIT <= 2**31


@pytest.mark.parametrize(
    ("n_out", "n_red", "layout", "count"),
    [
        (1, 1024, "rows", 1),
        (1, 65536, "rows", 16),
        (1, 2**28, "rows", 528),
        (8192, 8192, "rows", 1),
        (512, 4096, "rows", 1),
        (256, 151936, "rows", 3),
        (8, 1048576, "rows", 66),
        (8192, 8192, "strided", 2),
        (8192, 8192, "cols", 8),
        (2880, 65536, "strided", 16),
        (2880, 65536, "cols", 23),
        (2**20, 4, "cols", 1),
        (10**6, 2**31, "rows", 256),
        (10**6, 2**31, "strided", 2),
        (10**6, 0, "rows", 1),
    ],
)
def test_splits_fill_the_device(n_out: int, n_red: int, layout: Layout, count: int) -> None:
    assert splits(n_out, n_red, layout=layout, policy=H200).count == count


def test_tiles_of_columns_end_with_their_run() -> None:
    """100 runs of 130 outputs are 300 tiles of 64, not 204."""
    found = splits(13000, 8192, layout="cols", policy=SplitPolicy(processors=150), n_inner=130)
    assert found.count == 4


@pytest.mark.parametrize(("dtype", "aligned"), [("float32", True), ("float32", False), ("uint16", True)])
def test_columns_want_an_aligned_address_and_a_common_dtype(dtype: str, aligned: bool) -> None:
    types = resolve(ARGMAX, dtype, dtype)
    plan = make_plan(ARGMAX, types, (3, 50, 80), (4000, 80, 1), (1,), False, H200, aligned)
    if dtype == "float32" and aligned:
        assert (plan.kernel, plan.scalars) == ("argreduce_cols", (240, 50, 80, 4000, 80, 1, 64))
        assert plan.grid(64) == (6, 1)
    else:
        assert plan.kernel == "argreduce_strided"
        assert plan.grid(64) == (4, 1)


def test_an_output_that_no_grid_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^found 281474976710656 elements for one output, wanted at most"):
        splits(1, 2**48, layout="rows", policy=H200)
