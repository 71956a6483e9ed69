"""Reductions to a value: sum (and mean), prod, amax, amin, any, all, in one launch.

``reduce_rows`` takes rows whose elements lie one after another; ``reduce_strided`` takes any
strides. Sizes and strides count elements of the torch dtype. A launch may split the reduced
extent over ``n_splits`` programs an output tile: each writes its partial results, and the one
that arrives last combines them in a fixed order, so the result does not depend on who that is.
"""

import triton
import triton.language as tl

from .combine import combine, is_long, reduce_tile
from .elements import (
    carries_pair,
    identity_of,
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
    WIDTH: tl.constexpr = merge_width(OUT)
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
    n_out,
    n_splits,
    divisor,
    OUT: tl.constexpr,
    OP: tl.constexpr,
    DTYPE: tl.constexpr,
    OUT_DTYPE: tl.constexpr,
):
    """Write the results ``re``, ``im`` of the outputs ``index``, or hand them to the last split.

    ``counter_ptr`` holds a zero for each tile of outputs, and a zero again afterwards: the next
    launch on the stream, or the next replay of a graph, finds it as this one did.
    """
    PAIR: tl.constexpr = carries_pair(OP, DTYPE)
    LANES: tl.constexpr = 2 if PAIR else 1
    mask = index < n_out
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
):
    """out[row] = OP over col of x[row * row_stride + col], a sum divided by ``divisor``.

    Grid: (cdiv(n_rows, BLOCK_ROWS), n_splits). ``split_cols`` is how many columns a split takes.
    With several splits ``partial_ptr`` is a workspace of [n_splits, n_rows] accumulators and
    ``counter_ptr`` a zero for each tile of rows; with one neither is touched.
    """
    ACC: tl.constexpr = partial_ptr.dtype.element_ty
    PAIR: tl.constexpr = carries_pair(OP, DTYPE)
    LONG: tl.constexpr = is_long(OP, DTYPE)
    LANES: tl.constexpr = lanes_of(DTYPE)
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    start = tl.program_id(1).to(tl.int64) * split_cols
    length = tl.maximum(tl.minimum(split_cols, n_cols - start), 0)
    # Rows past the end read the last row and store nothing, so that no load needs a row mask.
    base = tl.minimum(rows, n_rows - 1) * row_stride + start
    at = x_ptr + base[:, None] * LANES + tl.arange(0, BLOCK_COLS * LANES)[None, :]

    neutral = tl.full([BLOCK_ROWS, BLOCK_COLS], identity_of(OP, ACC), ACC)
    re = neutral
    im = tl.zeros([BLOCK_ROWS, BLOCK_COLS], ACC)
    re_lo = im
    im_lo = im
    full = length // BLOCK_COLS * BLOCK_COLS
    for _ in range(0, full, BLOCK_COLS):
        x_re, x_im = read_lanes(tl.load(at), BLOCK_ROWS, BLOCK_COLS, OP, ACC, DTYPE)
        re, im, re_lo, im_lo = combine(re, im, re_lo, im_lo, x_re, x_im, OP, PAIR, LONG)
        at += BLOCK_COLS * LANES
    if full < length:
        rest = (length - full).to(tl.int32)
        inside = (tl.arange(0, BLOCK_COLS * LANES) < rest * LANES)[None, :]
        valid = (tl.arange(0, BLOCK_COLS) < rest)[None, :]
        x_re, x_im = read_lanes(tl.load(at, mask=inside), BLOCK_ROWS, BLOCK_COLS, OP, ACC, DTYPE)
        x_re = tl.where(valid, x_re, neutral)
        x_im = tl.where(valid, x_im, 0)
        re, im, re_lo, im_lo = combine(re, im, re_lo, im_lo, x_re, x_im, OP, PAIR, LONG)

    re, im = reduce_tile(re, im, re_lo, im_lo, 1, OP, PAIR, LONG)
    finish(
        re, im, out_ptr, partial_ptr, counter_ptr, rows, n_rows, n_splits, divisor,
        BLOCK_ROWS, OP, DTYPE, OUT_DTYPE,
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
        re, im, out_ptr, partial_ptr, counter_ptr, outs, n_out, n_splits, divisor,
        BLOCK_OUT, OP, DTYPE, OUT_DTYPE,
    )  # fmt: skip
