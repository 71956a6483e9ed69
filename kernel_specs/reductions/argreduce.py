"""Reductions to a position: argmax and argmin, and with them max and min along a dim.

The first NaN wins, and among equal values the lowest index; two zeros are equal whatever their
signs. A program keeps the best value of each lane of its tile and the step where it met it, and
compares lanes once, after the loop. Layouts, splits and workspace are those of ``reduce.py``.
"""

import triton
import triton.language as tl

from .elements import identity_of, merge_width, strided_offset, widen


@triton.jit
def above(a, b):
    """Whether ``a`` is strictly better than ``b`` for a maximum: larger, or NaN where b is none."""
    if a.dtype.is_floating():
        return ~(a <= b) & (b == b)
    else:
        return a > b


@triton.jit
def below(a, b):
    """Whether ``a`` is strictly better than ``b`` for a minimum: smaller, or NaN where b is none."""
    if a.dtype.is_floating():
        return ~(a >= b) & (b == b)
    else:
        return a < b


@triton.jit
def better(a, b, OP: tl.constexpr):
    """Whether ``a`` is strictly better than ``b``."""
    tl.static_assert(OP == "argmax" or OP == "argmin", "OP is argmax or argmin")
    if OP == "argmax":
        return above(a, b)
    else:
        return below(a, b)


@triton.jit
def pick_max(value, index, other_value, other_index):
    take = above(other_value, value) | (~above(value, other_value) & (other_index < index))
    return tl.where(take, other_value, value), tl.where(take, other_index, index)


@triton.jit
def pick_min(value, index, other_value, other_index):
    take = below(other_value, value) | (~below(value, other_value) & (other_index < index))
    return tl.where(take, other_value, value), tl.where(take, other_index, index)


@triton.jit
def pick_tile(value, index, AXIS: tl.constexpr, OP: tl.constexpr):
    """Return the best value along ``AXIS`` and the lowest index that holds it."""
    if OP == "argmax":
        return tl.reduce((value, index), AXIS, pick_max)
    else:
        return tl.reduce((value, index), AXIS, pick_min)


@triton.jit
def merge_partials(value_ptr, index_ptr, out, mask, n_out, n_splits, OUT: tl.constexpr, OP: tl.constexpr):
    """Pick the best of every split's partial result, [n_splits, n_out]."""
    ACC: tl.constexpr = value_ptr.dtype.element_ty
    WIDTH: tl.constexpr = merge_width(OUT, True)
    neutral = tl.full([WIDTH, OUT], identity_of(OP, ACC), ACC)
    beyond = tl.full([WIDTH, OUT], 2**63 - 1, tl.int64)
    value = neutral
    index = beyond
    for first in range(0, n_splits, WIDTH):
        split = first + tl.arange(0, WIDTH)
        valid = (split < n_splits)[:, None] & mask[None, :]
        at = split.to(tl.int64)[:, None] * n_out + out[None, :]
        # Other SMs wrote the partials in this very launch: read them past this one's L1.
        part = tl.load(value_ptr + at, mask=valid, cache_modifier=".cg")
        part_index = tl.load(index_ptr + at, mask=valid, cache_modifier=".cg")
        part = tl.where(valid, part, neutral)
        part_index = tl.where(valid, part_index, beyond)
        if OP == "argmax":
            value, index = pick_max(value, index, part, part_index)
        else:
            value, index = pick_min(value, index, part, part_index)
    return pick_tile(value, index, 0, OP)


@triton.jit
def settle(
    value,
    index,
    partial_value_ptr,
    partial_index_ptr,
    counter_ptr,
    out,
    mask,
    n_out,
    n_splits,
    OUT: tl.constexpr,
    OP: tl.constexpr,
):
    """Return the index for each output of ``out``, and whether this program is to write them.

    ``mask`` says which of ``out`` there are.
    With several splits only the one that arrives last is. Ordering is that of ``reduce.finish``.
    """
    last = n_splits == 1
    if n_splits != 1:
        at = tl.program_id(1).to(tl.int64) * n_out + out
        tl.store(partial_value_ptr + at, value, mask=mask)
        tl.store(partial_index_ptr + at, index, mask=mask)
        tl.debug_barrier()
        arrived = tl.atomic_add(counter_ptr + tl.program_id(0), 1, sem="acq_rel", scope="gpu")
        last = arrived == n_splits - 1
        if last:
            value, index = merge_partials(
                partial_value_ptr, partial_index_ptr, out, mask, n_out, n_splits, OUT, OP
            )
            tl.store(counter_ptr + tl.program_id(0), 0)
    return index, last


@triton.jit
def step_on(best, step, raw, valid, i, OP: tl.constexpr, DTYPE: tl.constexpr):
    """Let the tile ``raw``, as loaded, compete where ``valid``: its lanes' step is ``i``."""
    ACC: tl.constexpr = best.dtype
    value = widen(raw, ACC, DTYPE)
    value = tl.where(valid, value, tl.full(best.shape, identity_of(OP, ACC), ACC))
    take = better(value, best, OP)
    return tl.where(take, value, best), tl.where(take, i, step)


@triton.jit
def argreduce_rows(
    x_ptr,
    value_ptr,
    index_ptr,
    partial_value_ptr,
    partial_index_ptr,
    counter_ptr,
    n_rows,
    n_cols,
    row_stride,
    n_splits,
    split_cols,
    write_values,
    OP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    VECTOR: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """index[row] = where OP over col of x[row * row_stride + col] is; value[row] = that element.

    Grid: (cdiv(n_rows, BLOCK_ROWS), n_splits). ``split_cols``, at most 2**23, is how many columns
    a split takes. ``value_ptr`` is written only where ``write_values`` is not 0. Tails are read as
    in ``reduce_rows``.
    """
    ACC: tl.constexpr = partial_value_ptr.dtype.element_ty
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    start = tl.program_id(1).to(tl.int64) * split_cols
    length = tl.maximum(tl.minimum(split_cols, n_cols - start), 0).to(tl.int32)
    row = x_ptr + tl.minimum(rows, n_rows - 1) * row_stride
    cols = tl.arange(0, BLOCK_COLS)[None, :]
    at = (row + start)[:, None] + cols

    # A lane starts with the worst value at its own first column. If the lane is real, no element
    # of it is worse; if it is padding, it loses the tie, because its column is higher than any.
    best = tl.full([BLOCK_ROWS, BLOCK_COLS], identity_of(OP, ACC), ACC)
    step = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.int32)
    n_full = length // BLOCK_COLS
    for i in tl.range(0, n_full, loop_unroll_factor=UNROLL):
        value = widen(tl.load(at), ACC, DTYPE)
        take = better(value, best, OP)
        best = tl.where(take, value, best)
        step = tl.where(take, i, step)
        at += BLOCK_COLS
    rest = length - n_full * BLOCK_COLS
    whole = rest // VECTOR * VECTOR
    if whole > 0:
        valid = cols < whole
        best, step = step_on(best, step, tl.load(at, mask=valid), valid, n_full, OP, DTYPE)
    if VECTOR > 1:
        if whole < rest:
            valid = (cols >= whole) & (cols < rest)
            best, step = step_on(best, step, tl.load(at, mask=valid), valid, n_full, OP, DTYPE)

    mask = rows < n_rows
    value, local = pick_tile(best, step * BLOCK_COLS + cols, 1, OP)
    index, last = settle(
        value, start + local, partial_value_ptr, partial_index_ptr, counter_ptr,
        rows, mask, n_rows, n_splits, BLOCK_ROWS, OP,
    )  # fmt: skip
    if last:
        tl.store(index_ptr + rows, index, mask=mask)
        if write_values != 0:
            tl.store(value_ptr + rows, tl.load(row + index, mask=mask & (index < n_cols)), mask=mask)


@triton.jit
def argreduce_cols(
    x_ptr,
    value_ptr,
    index_ptr,
    partial_value_ptr,
    partial_index_ptr,
    counter_ptr,
    n_out,
    n_red,
    n_inner,
    outer_stride,
    red_stride,
    n_splits,
    split_red,
    write_values,
    OP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_RED: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """index[i, j] = where OP over r of x[i * outer_stride + r * red_stride + j] is.

    Extents and grid are those of ``reduce.reduce_cols``; ``value_ptr`` is as in ``argreduce_rows``.
    """
    ACC: tl.constexpr = partial_value_ptr.dtype.element_ty
    # The grid has fewer than 2**31 programs: a short division.
    tiles = tl.cdiv(n_inner, BLOCK_OUT).to(tl.int32)
    outer = (tl.program_id(0) // tiles).to(tl.int64)
    begin = (tl.program_id(0) - outer * tiles) * BLOCK_OUT
    first = tl.multiple_of(tl.minimum(begin, n_inner - BLOCK_OUT), 16)
    inner = first + tl.arange(0, BLOCK_OUT)
    own = inner >= begin
    start = tl.program_id(1).to(tl.int64) * split_red
    length = tl.maximum(tl.minimum(split_red, n_red - start), 0).to(tl.int32)
    reds = tl.arange(0, BLOCK_RED)
    kept = x_ptr + outer * outer_stride
    base = kept + start * red_stride
    offsets = (reds * red_stride)[:, None] + inner[None, :]

    best = tl.full([BLOCK_RED, BLOCK_OUT], identity_of(OP, ACC), ACC)
    step = tl.zeros([BLOCK_RED, BLOCK_OUT], tl.int32)
    n_full = length // BLOCK_RED
    for i in tl.range(0, n_full, loop_unroll_factor=UNROLL):
        value = widen(tl.load(base + offsets), ACC, DTYPE)
        take = better(value, best, OP)
        best = tl.where(take, value, best)
        step = tl.where(take, i, step)
        base += BLOCK_RED * red_stride
    rest = length - n_full * BLOCK_RED
    if rest > 0:
        valid = (reds < rest)[:, None]
        best, step = step_on(best, step, tl.load(base + offsets, mask=valid), valid, n_full, OP, DTYPE)

    value, local = pick_tile(best, step * BLOCK_RED + reds[:, None], 0, OP)
    out = outer * n_inner + inner
    index, last = settle(
        value, start + local, partial_value_ptr, partial_index_ptr, counter_ptr,
        out, own, n_out, n_splits, BLOCK_OUT, OP,
    )  # fmt: skip
    if last:
        tl.store(index_ptr + out, index, mask=own)
        if write_values != 0:
            found = tl.load(kept + index * red_stride + inner, mask=own & (index < n_red))
            tl.store(value_ptr + out, found, mask=own)


@triton.jit
def argreduce_strided(
    x_ptr,
    value_ptr,
    index_ptr,
    partial_value_ptr,
    partial_index_ptr,
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
    write_values,
    OP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_RED: tl.constexpr,
):
    """index[k] = the linear reduced index where OP of x is, value[k] = that element.

    Kept and reduced indices have the offsets of ``reduce.reduce_strided``; ``value_ptr`` and
    ``split_red`` are as in ``argreduce_rows``. Grid: (cdiv(n_out, BLOCK_OUT), n_splits).
    """
    ACC: tl.constexpr = partial_value_ptr.dtype.element_ty
    outs = tl.program_id(0).to(tl.int64) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    start = tl.program_id(1).to(tl.int64) * split_red
    length = tl.maximum(tl.minimum(split_red, n_red - start), 0).to(tl.int32)
    kept = x_ptr + strided_offset(tl.minimum(outs, n_out - 1), n_out, k1, k2, ks0, ks1, ks2)
    lanes = tl.arange(0, BLOCK_RED)

    neutral = tl.full([BLOCK_RED, BLOCK_OUT], identity_of(OP, ACC), ACC)
    best = neutral
    step = tl.zeros([BLOCK_RED, BLOCK_OUT], tl.int32)
    for i in range(tl.cdiv(length, BLOCK_RED)):
        first = start + i * BLOCK_RED
        reds = first + lanes
        offset = strided_offset(reds, n_red, r1, r2, rs0, rs1, rs2)
        valid = tl.broadcast_to((reds < start + length)[:, None], [BLOCK_RED, BLOCK_OUT])
        raw = tl.load(kept[None, :] + offset[:, None], mask=valid)
        value = tl.where(valid, widen(raw, ACC, DTYPE), neutral)
        take = better(value, best, OP)
        best = tl.where(take, value, best)
        step = tl.where(take, i, step)

    mask = outs < n_out
    value, local = pick_tile(best, step * BLOCK_RED + lanes[:, None], 0, OP)
    index, last = settle(
        value, start + local, partial_value_ptr, partial_index_ptr, counter_ptr,
        outs, mask, n_out, n_splits, BLOCK_OUT, OP,
    )  # fmt: skip
    if last:
        tl.store(index_ptr + outs, index, mask=mask)
        if write_values != 0:
            at = kept + strided_offset(index, n_red, r1, r2, rs0, rs1, rs2)
            tl.store(value_ptr + outs, tl.load(at, mask=mask & (index < n_red)), mask=mask)
