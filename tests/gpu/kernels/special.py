"""Kernels that need what reductions do not: clusters, much shared memory, scratch, every scalar type."""

import triton
import triton.language as tl


@triton.jit
def scalars(out_ptr, flag, a, b, c, d, e, f, g, h, i, j, k, BLOCK: tl.constexpr):
    """Write each scalar as fp64, so that a shifted or truncated one shows."""
    tl.store(out_ptr + 0, flag.to(tl.float64))
    tl.store(out_ptr + 1, a.to(tl.float64))
    tl.store(out_ptr + 2, b.to(tl.float64))
    tl.store(out_ptr + 3, c.to(tl.float64))
    tl.store(out_ptr + 4, d.to(tl.float64))
    tl.store(out_ptr + 5, e.to(tl.float64))
    tl.store(out_ptr + 6, f.to(tl.float64))
    tl.store(out_ptr + 7, g.to(tl.float64))
    tl.store(out_ptr + 8, h.to(tl.float64))
    tl.store(out_ptr + 9, i.to(tl.float64))
    tl.store(out_ptr + 10, j.to(tl.float64))
    # An integer that is claimed to be 1 is a plain Python number in here.
    tl.store(out_ptr + 11, tl.full((), k, tl.int64).to(tl.float64))
    tl.store(out_ptr + 12 + tl.arange(0, BLOCK), tl.full([BLOCK], 7, tl.float64))


@triton.jit
def scale(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    """Multiply n elements; built with two CTAs a cluster."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x * factor, mask=i < n)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """c = a @ b for square matrices whose side is a multiple of BLOCK; pipelined in shared memory."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, DEPTH)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, n, DEPTH):
        a = tl.load(a_ptr + rows[:, None] * n + (start + inner)[None, :])
        b = tl.load(b_ptr + (start + inner)[:, None] * n + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc.to(tl.float16))


@triton.jit
def tiles(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    """Add one through tensor descriptors that the kernel makes: they live in global scratch."""
    source = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(out_ptr, [rows, cols], [cols, 1], [BLOCK, BLOCK])
    row, col = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([row, col], source.load([row, col]) + 1)
