"""Reductions to a value: sum (and mean), prod, amax, amin, any, all, in one launch.

``reduce_rows`` takes rows whose elements lie one after another, ``reduce_cols`` what keeps its
innermost dimension, ``reduce_strided`` any strides. Sizes and strides count elements of the torch
dtype. A launch may split the reduced extent over ``n_splits`` programs an output tile: each writes
its partial results, and the one that arrives last combines them in a fixed order, so the result
does not depend on who that is.
"""

import triton
import triton.language as tl

from .combine import combine, is_long, reduce_tile
from .elements import (
    carries_pair,
    identity_of,
    lane_type,
    lanes_of,
    merge_width,
    narrow,
    read_lanes,
    read_pair,
    strided_offset,
)


@triton.jit
def load_pair(ptr, mask, CACHE: tl.constexpr, LANES: tl.constexpr):
    """Load the elements whose first lanes are at ``ptr``. A real element is returned twice."""
    re = tl.load(ptr, mask=mask, cache_modifier=CACHE)
    if LANES == 2:
        return re, tl.load(ptr + 1, mask=mask, cache_modifier=CACHE)
    else:
        return re, re


@triton.jit
def store_pair(ptr, re, im, mask, PAIR: tl.constexpr):
    """Store results at ``ptr``, a pointer to each result's first lane."""
    tl.store(ptr, re, mask=mask)
    if PAIR:
        tl.store(ptr + 1, im, mask=mask)


@triton.jit
def merge_partials(
    partial_ptr,
    index,
    mask,
    n_out,
    n_splits,
    OUT: tl.constexpr,
    OP: tl.constexpr,
    PAIR: tl.constexpr,
    LONG: tl.constexpr,
):
    """Combine the partial results of every split, [n_splits, n_out], in a fixed order."""
    ACC: tl.constexpr = partial_ptr.dtype.element_ty
    LANES: tl.constexpr = 2 if PAIR else 1
    WIDTH: tl.constexpr = merge_width(OUT, PAIR or LONG)
    neutral = tl.full([WIDTH, OUT], identity_of(OP, ACC), ACC)
    nothing = tl.zeros([WIDTH, OUT], ACC)
    re = neutral
    im = nothing
    re_lo = nothing
    im_lo = nothing
    for first in range(0, n_splits, WIDTH):
        split = first + tl.arange(0, WIDTH)
        valid = (split < n_splits)[:, None] & mask[None, :]
        at = split.to(tl.int64)[:, None] * n_out + index[None, :]
        # Other SMs wrote the partials in this very launch: read them past this one's L1.
        part_re, part_im = load_pair(partial_ptr + at * LANES, valid, ".cg", LANES)
        part_re = tl.where(valid, part_re, neutral)
        part_im = tl.where(valid, part_im, nothing)
        re, im, re_lo, im_lo = combine(re, im, re_lo, im_lo, part_re, part_im, OP, PAIR, LONG)
    return reduce_tile(re, im, re_lo, im_lo, 0, OP, PAIR, LONG)


@triton.jit
def finish(
    re,
    im,
    out_ptr,
    partial_ptr,
    counter_ptr,
    index,
    mask,
    n_out,
    n_splits,
    divisor,
    OUT: tl.constexpr,
    OP: tl.constexpr,
    DTYPE: tl.constexpr,
    OUT_DTYPE: tl.constexpr,
):
    """Write the results ``re``, ``im`` of the outputs ``index``, or hand them to the last split.

    ``mask`` says which of them there are.

    ``counter_ptr`` holds a zero for each tile of outputs, and a zero again afterwards: the next
    launch on the stream, or the next replay of a graph, finds it as this one did.
    """
    PAIR: tl.constexpr = carries_pair(OP, DTYPE)
    LANES: tl.constexpr = 2 if PAIR else 1
    ACC: tl.constexpr = partial_ptr.dtype.element_ty
    re = re.to(ACC)
    im = im.to(ACC)
    last = n_splits == 1
    if n_splits != 1:
        at = tl.program_id(1).to(tl.int64) * n_out + index
        store_pair(partial_ptr + at * LANES, re, im, mask, PAIR)
        # The barrier orders every thread's stores before the one thread's release, and the
        # acquire of whoever counts last orders them before its reads.
        tl.debug_barrier()
        arrived = tl.atomic_add(counter_ptr + tl.program_id(0), 1, sem="acq_rel", scope="gpu")
        last = arrived == n_splits - 1
        if last:
            re, im = merge_partials(
                partial_ptr, index, mask, n_out, n_splits, OUT, OP, PAIR, is_long(OP, DTYPE)
            )
            tl.store(counter_ptr + tl.program_id(0), 0)
    if last:
        if OP == "sum":
            # Divisions in fp64 take longer than short rows do.
            if divisor != 1:
                if re.dtype == tl.float32:
                    re = tl.div_rn(re, divisor)
                    im = tl.div_rn(im, divisor)
                elif re.dtype == tl.float64:
                    re = re / divisor
                    im = im / divisor
        out_re = narrow(re, out_ptr, OUT_DTYPE)
        out_im = narrow(im, out_ptr, OUT_DTYPE)
        store_pair(out_ptr + index * LANES, out_re, out_im, mask, PAIR)


@triton.jit
def masked_step(
    re, im, re_lo, im_lo, at, mask, valid,
    ROWS: tl.constexpr, COLS: tl.constexpr, OP: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Combine the tile at ``at``, [ROWS, COLS * lanes], into the accumulators where ``valid``."""
    LANE: tl.constexpr = re.dtype
    raw = tl.load(at, mask=mask)
    x_re, x_im = read_lanes(raw, ROWS, COLS, OP, LANE, DTYPE)
    x_re = tl.where(valid, x_re, tl.full([ROWS, COLS], identity_of(OP, LANE), LANE))
    x_im = tl.where(valid, x_im, 0)
    return combine(re, im, re_lo, im_lo, x_re, x_im, OP, carries_pair(OP, DTYPE), is_long(OP, DTYPE))


@triton.jit
def reduce_rows(
    x_ptr,
    out_ptr,
    partial_ptr,
    counter_ptr,
    n_rows,
    n_cols,
    row_stride,
    n_splits,
    split_cols,
    divisor,
    OP: tl.constexpr,
    DTYPE: tl.constexpr,
    OUT_DTYPE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    VECTOR: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """out[row] = OP over col of x[row * row_stride + col], a sum divided by ``divisor``.

    Grid: (cdiv(n_rows, BLOCK_ROWS), n_splits). ``split_cols`` is how many columns a split takes,
    at most 2**23. With several splits ``partial_ptr`` is a workspace of [n_splits, n_rows]
    accumulators and ``counter_ptr`` a zero for each tile of rows; with one neither is touched.
    The columns past the last whole tile are read ``VECTOR`` at a time, and the last few singly.
    """
    ACC: tl.constexpr = partial_ptr.dtype.element_ty
    LANE: tl.constexpr = lane_type(OP, DTYPE, ACC)
    PAIR: tl.constexpr = carries_pair(OP, DTYPE)
    LONG: tl.constexpr = is_long(OP, DTYPE)
    LANES: tl.constexpr = lanes_of(DTYPE)
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    start = tl.program_id(1).to(tl.int64) * split_cols
    length = tl.maximum(tl.minimum(split_cols, n_cols - start), 0).to(tl.int32)
    # Rows past the end read the last row and store nothing, so that no load needs a row mask.
    base = tl.minimum(rows, n_rows - 1) * row_stride + start
    cols = tl.arange(0, BLOCK_COLS)[None, :]
    lanes = tl.arange(0, BLOCK_COLS * LANES)[None, :]
    at = x_ptr + base[:, None] * LANES + lanes

    re = tl.full([BLOCK_ROWS, BLOCK_COLS], identity_of(OP, LANE), LANE)
    im = tl.zeros([BLOCK_ROWS, BLOCK_COLS], LANE)
    re_lo = im
    im_lo = im
    full = length // BLOCK_COLS * BLOCK_COLS
    for _ in tl.range(0, full, BLOCK_COLS, loop_unroll_factor=UNROLL):
        x_re, x_im = read_lanes(tl.load(at), BLOCK_ROWS, BLOCK_COLS, OP, LANE, DTYPE)
        re, im, re_lo, im_lo = combine(re, im, re_lo, im_lo, x_re, x_im, OP, PAIR, LONG)
        at += BLOCK_COLS * LANES
    rest = length - full
    whole = rest // VECTOR * VECTOR
    if whole > 0:
        re, im, re_lo, im_lo = masked_step(
            re, im, re_lo, im_lo, at, lanes < whole * LANES, cols < whole,
            BLOCK_ROWS, BLOCK_COLS, OP, DTYPE,
        )  # fmt: skip
    if VECTOR > 1:
        if whole < rest:
            re, im, re_lo, im_lo = masked_step(
                re, im, re_lo, im_lo, at,
                (lanes >= whole * LANES) & (lanes < rest * LANES), (cols >= whole) & (cols < rest),
                BLOCK_ROWS, BLOCK_COLS, OP, DTYPE,
            )  # fmt: skip

    re, im = reduce_tile(re, im, re_lo, im_lo, 1, OP, PAIR, LONG)
    finish(
        re, im, out_ptr, partial_ptr, counter_ptr, rows, rows < n_rows, n_rows, n_splits, divisor,
        BLOCK_ROWS, OP, DTYPE, OUT_DTYPE,
    )  # fmt: skip


@triton.jit
def reduce_cols(
    x_ptr,
    out_ptr,
    partial_ptr,
    counter_ptr,
    n_out,
    n_red,
    n_inner,
    outer_stride,
    red_stride,
    n_splits,
    split_red,
    divisor,
    OP: tl.constexpr,
    DTYPE: tl.constexpr,
    OUT_DTYPE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_RED: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """out[i, j] = OP over r of x[i * outer_stride + r * red_stride + j], a sum divided by ``divisor``.

    j < n_inner and i < n_out / n_inner. A program holds BLOCK_OUT neighbours of one i, which is
    at most n_inner; the last ones of an i reach back over those before, so that no load of a whole
    tile needs a mask, behind which loads would wait for each other.
    Grid: (n_out / n_inner * cdiv(n_inner, BLOCK_OUT), n_splits). ``split_red`` is at most 2**23.
    Splits and workspace are those of ``reduce_rows``.
    """
    ACC: tl.constexpr = partial_ptr.dtype.element_ty
    LANE: tl.constexpr = lane_type(OP, DTYPE, ACC)
    PAIR: tl.constexpr = carries_pair(OP, DTYPE)
    LONG: tl.constexpr = is_long(OP, DTYPE)
    LANES: tl.constexpr = lanes_of(DTYPE)
    # The grid has fewer than 2**31 programs: a short division.
    tiles = tl.cdiv(n_inner, BLOCK_OUT).to(tl.int32)
    outer = (tl.program_id(0) // tiles).to(tl.int64)
    begin = (tl.program_id(0) - outer * tiles) * BLOCK_OUT
    first = tl.multiple_of(tl.minimum(begin, n_inner - BLOCK_OUT), 16)
    start = tl.program_id(1).to(tl.int64) * split_red
    length = tl.maximum(tl.minimum(split_red, n_red - start), 0).to(tl.int32)
    inner = first + tl.arange(0, BLOCK_OUT)
    own = inner >= begin
    lanes = first * LANES + tl.arange(0, BLOCK_OUT * LANES)
    reds = tl.arange(0, BLOCK_RED)
    base = x_ptr + (outer * outer_stride + start * red_stride) * LANES
    # One pointer for all lanes moves: with a pointer a lane, fewer loads are under way at a time.
    offsets = (reds * red_stride * LANES)[:, None] + lanes[None, :]

    re = tl.full([BLOCK_RED, BLOCK_OUT], identity_of(OP, LANE), LANE)
    im = tl.zeros([BLOCK_RED, BLOCK_OUT], LANE)
    re_lo = im
    im_lo = im
    full = length // BLOCK_RED * BLOCK_RED
    for _ in tl.range(0, full, BLOCK_RED, loop_unroll_factor=UNROLL):
        x_re, x_im = read_lanes(tl.load(base + offsets), BLOCK_RED, BLOCK_OUT, OP, LANE, DTYPE)
        re, im, re_lo, im_lo = combine(re, im, re_lo, im_lo, x_re, x_im, OP, PAIR, LONG)
        base += BLOCK_RED * red_stride * LANES
    if full < length:
        valid = (reds < length - full)[:, None]
        re, im, re_lo, im_lo = masked_step(
            re, im, re_lo, im_lo, base + offsets, valid, valid, BLOCK_RED, BLOCK_OUT, OP, DTYPE
        )

    re, im = reduce_tile(re, im, re_lo, im_lo, 0, OP, PAIR, LONG)
    finish(
        re, im, out_ptr, partial_ptr, counter_ptr, outer * n_inner + inner, own, n_out, n_splits,
        divisor, BLOCK_OUT, OP, DTYPE, OUT_DTYPE,
    )  # fmt: skip


@triton.jit
def reduce_strided(
    x_ptr,
    out_ptr,
    partial_ptr,
    counter_ptr,
    n_out,
    n_red,
    k1,
    k2,
    ks0,
    ks1,
    ks2,
    r1,
    r2,
    rs0,
    rs1,
    rs2,
    n_splits,
    split_red,
    divisor,
    OP: tl.constexpr,
    DTYPE: tl.constexpr,
    OUT_DTYPE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_RED: tl.constexpr,
):
    """out[k] = OP over r of x at the offset of k plus the offset of r, a sum divided by ``divisor``.

    The kept index k = (i0 * k1 + i1) * k2 + i2 lies at i0 * ks0 + i1 * ks1 + i2 * ks2, and the
    reduced index likewise with ``r1``, ``r2`` and ``rs*``; any stride, 0 and negative too.
    Grid: (cdiv(n_out, BLOCK_OUT), n_splits). Splits and workspace are those of ``reduce_rows``.
    """
    ACC: tl.constexpr = partial_ptr.dtype.element_ty
    PAIR: tl.constexpr = carries_pair(OP, DTYPE)
    LONG: tl.constexpr = is_long(OP, DTYPE)
    LANES: tl.constexpr = lanes_of(DTYPE)
    outs = tl.program_id(0).to(tl.int64) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    start = tl.program_id(1).to(tl.int64) * split_red
    stop = tl.minimum(start + split_red, n_red)
    kept = strided_offset(tl.minimum(outs, n_out - 1), n_out, k1, k2, ks0, ks1, ks2)

    # Outputs are the tile's inner dimension: what is kept is usually what lies close together.
    neutral = tl.full([BLOCK_RED, BLOCK_OUT], identity_of(OP, ACC), ACC)
    re = neutral
    im = tl.zeros([BLOCK_RED, BLOCK_OUT], ACC)
    re_lo = im
    im_lo = im
    for first in range(start, stop, BLOCK_RED):
        reds = first + tl.arange(0, BLOCK_RED).to(tl.int64)
        offset = strided_offset(reds, n_red, r1, r2, rs0, rs1, rs2)
        at = x_ptr + (offset[:, None] + kept[None, :]) * LANES
        valid = tl.broadcast_to((reds < stop)[:, None], [BLOCK_RED, BLOCK_OUT])
        raw_re, raw_im = load_pair(at, valid, "", LANES)
        x_re, x_im = read_pair(raw_re, raw_im, OP, ACC, DTYPE)
        x_re = tl.where(valid, x_re, neutral)
        x_im = tl.where(valid, x_im, 0)
        re, im, re_lo, im_lo = combine(re, im, re_lo, im_lo, x_re, x_im, OP, PAIR, LONG)

    re, im = reduce_tile(re, im, re_lo, im_lo, 0, OP, PAIR, LONG)
    finish(
        re, im, out_ptr, partial_ptr, counter_ptr, outs, outs < n_out, n_out, n_splits, divisor,
        BLOCK_OUT, OP, DTYPE, OUT_DTYPE,
    )  # fmt: skip
