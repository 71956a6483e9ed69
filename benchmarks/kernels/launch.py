"""Kernels whose launch is measured: of 4, 9 and 19 arguments, each with work that can be checked."""

import triton
import triton.language as tl


@triton.jit
def sum_rows(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    """out[row] = the sum of a row of x, which is contiguous. Grid: (rows,)."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0)
    tl.store(out_ptr + row, tl.sum(x))


@triton.jit
def rms_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    row_stride,
    n_cols,
    eps,
    BLOCK: tl.constexpr,
    KEEP_SUM: tl.constexpr,
):
    """out = RMSNorm(x + residual) * weight, row by row. Grid: (rows,)."""
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    offsets = tl.program_id(0) * row_stride + cols
    x = tl.load(x_ptr + offsets, mask=mask, other=0) + tl.load(residual_ptr + offsets, mask=mask, other=0)
    if KEEP_SUM:
        tl.store(residual_ptr + offsets, x, mask=mask)
    scale = tl.rsqrt(tl.sum(x * x) / n_cols + eps)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0)
    tl.store(out_ptr + offsets, x * scale * weight, mask=mask)


@triton.jit
def add_products(
    a_ptr,
    b_ptr,
    c_ptr,
    d_ptr,
    out_ptr,
    first_row,
    first_col,
    n_rows,
    n_cols,
    a_stride,
    b_stride,
    c_stride,
    d_stride,
    out_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    NEGATE: tl.constexpr,
    RELU: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):
    """out = a * b + c * d in the rows and columns from ``first`` on. Grid: tiles of n_rows × n_cols."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    mask = (row < n_rows) & (col < n_cols)
    row += first_row
    col += first_col
    result = tl.load(a_ptr + row * a_stride + col, mask=mask) * tl.load(
        b_ptr + row * b_stride + col, mask=mask
    )
    result += tl.load(c_ptr + row * c_stride + col, mask=mask) * tl.load(
        d_ptr + row * d_stride + col, mask=mask
    )
    if NEGATE:
        result = -result
    if RELU:
        result = tl.maximum(result, 0)
    out = out_ptr + row * out_stride + col
    if ACCUMULATE:
        result += tl.load(out, mask=mask)
    tl.store(out, result, mask=mask)
