"""The operations: how two accumulators become one, and how a tile becomes a row of results."""

import triton
import triton.language as tl


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def add_pair(a_re, a_im, b_re, b_im):
    return a_re + b_re, a_im + b_im


@triton.jit
def multiply_pair(a_re, a_im, b_re, b_im):
    """The complex product. One leaves the other factor as it is, infinities and signs of zeros too:
    the tile is padded with ones, and plain arithmetic would make ``(inf + 1j) * 1`` a NaN."""
    a_one = (a_re == 1) & (a_im == 0)
    b_one = (b_re == 1) & (b_im == 0)
    re = tl.where(b_one, a_re, tl.where(a_one, b_re, a_re * b_re - a_im * b_im))
    im = tl.where(b_one, a_im, tl.where(a_one, b_im, a_re * b_im + a_im * b_re))
    return re, im


@triton.jit
def maximum(a, b):
    """The larger one. NaN wins; of two zeros the positive one wins, in either order."""
    if a.dtype.is_floating():
        # Equal floats have equal bits, but for zeros of two signs: there the signs are and-ed.
        # One instruction does all that on fp32, yet none on fp64, and not the interpreter.
        BITS: tl.constexpr = tl.int64 if a.dtype == tl.float64 else tl.int32
        equal = (a.to(BITS, bitcast=True) & b.to(BITS, bitcast=True)).to(a.dtype, bitcast=True)
        if a.dtype == tl.float64:
            larger = tl.where(b != b, b, tl.where(a <= b, b, a))
        else:
            larger = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
        return tl.where(a == b, equal, larger)
    else:
        return tl.maximum(a, b)


@triton.jit
def minimum(a, b):
    """The smaller one. NaN wins; of two zeros the negative one wins, in either order."""
    if a.dtype.is_floating():
        BITS: tl.constexpr = tl.int64 if a.dtype == tl.float64 else tl.int32
        equal = (a.to(BITS, bitcast=True) | b.to(BITS, bitcast=True)).to(a.dtype, bitcast=True)
        if a.dtype == tl.float64:
            smaller = tl.where(b != b, b, tl.where(a >= b, b, a))
        else:
            smaller = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
        return tl.where(a == b, equal, smaller)
    else:
        return tl.minimum(a, b)


@triton.jit
def combine(re, im, other_re, other_im, OP: tl.constexpr, PAIR: tl.constexpr):
    """Combine elementwise. ``PAIR``: the accumulator is complex; else ``im`` stays as it is."""
    if OP == "sum":
        if PAIR:
            return add_pair(re, im, other_re, other_im)
        else:
            return re + other_re, im
    elif OP == "prod":
        if PAIR:
            return multiply_pair(re, im, other_re, other_im)
        else:
            return re * other_re, im
    elif OP == "amax":
        return maximum(re, other_re), im
    elif OP == "amin":
        return minimum(re, other_re), im
    elif OP == "any":
        return re | other_re, im
    else:
        tl.static_assert(OP == "all", "OP is one of sum, prod, amax, amin, any, all")
        return re & other_re, im


@triton.jit
def reduce_tile(re, im, AXIS: tl.constexpr, OP: tl.constexpr, PAIR: tl.constexpr):
    """Combine along ``AXIS`` of a tile. Returns two tensors of one dimension less."""
    if PAIR:
        if OP == "sum":
            return tl.reduce((re, im), AXIS, add_pair)
        else:
            return tl.reduce((re, im), AXIS, multiply_pair)
    else:
        if OP == "sum":
            out = tl.reduce(re, AXIS, add)
        elif OP == "prod":
            out = tl.reduce(re, AXIS, multiply)
        elif OP == "amax":
            out = tl.reduce(re, AXIS, maximum)
        elif OP == "amin":
            out = tl.reduce(re, AXIS, minimum)
        elif OP == "any":
            out = tl.reduce(re, AXIS, either)
        else:
            out = tl.reduce(re, AXIS, both)
        return out, out
