"""The operations: how two accumulators become one, and how a tile becomes a row of results."""

import triton
import triton.language as tl

from .longer import add_long, add_long_pair, multiply_long, multiply_long_pair, rounded


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


@triton.constexpr_function
def is_long(op, dtype):
    """Say whether ``op`` keeps rounding errors: where no accumulator is wider than ``dtype``."""
    return op in ("sum", "prod") and dtype in ("float64", "complex128")


@triton.jit
def combine(
    re, im, re_lo, im_lo, other_re, other_im, OP: tl.constexpr, PAIR: tl.constexpr, LONG: tl.constexpr
):
    """Combine elementwise. ``PAIR``: the accumulator is complex; else ``im`` stays as it is.

    ``LONG``: ``re_lo``, ``im_lo`` are the rounding errors so far; else they stay as they are.
    """
    if OP == "sum":
        if LONG:
            re, re_lo = add_long(re, re_lo, other_re, 0.0)
            if PAIR:
                im, im_lo = add_long(im, im_lo, other_im, 0.0)
        else:
            re = re + other_re
            if PAIR:
                im = im + other_im
    elif OP == "prod":
        if LONG:
            if PAIR:
                none = tl.zeros_like(other_re)
                re, im, re_lo, im_lo = multiply_long_pair(
                    re, im, re_lo, im_lo, other_re, other_im, none, none
                )
            else:
                re, re_lo = multiply_long(re, re_lo, other_re, 0.0)
        else:
            if PAIR:
                re, im = multiply_pair(re, im, other_re, other_im)
            else:
                re = re * other_re
    elif OP == "amax":
        re = maximum(re, other_re)
    elif OP == "amin":
        re = minimum(re, other_re)
    elif OP == "any":
        re = re | other_re
    else:
        tl.static_assert(OP == "all", "OP is one of sum, prod, amax, amin, any, all")
        re = re & other_re
    return re, im, re_lo, im_lo


@triton.jit
def reduce_tile(
    re, im, re_lo, im_lo, AXIS: tl.constexpr, OP: tl.constexpr, PAIR: tl.constexpr, LONG: tl.constexpr
):
    """Combine along ``AXIS`` of a tile. Returns two tensors of one dimension less, ``re`` and ``im``."""
    if LONG:
        if PAIR:
            if OP == "sum":
                re, im, re_lo, im_lo = tl.reduce((re, im, re_lo, im_lo), AXIS, add_long_pair)
            else:
                re, im, re_lo, im_lo = tl.reduce((re, im, re_lo, im_lo), AXIS, multiply_long_pair)
            return rounded(re, re_lo), rounded(im, im_lo)
        else:
            if OP == "sum":
                re, re_lo = tl.reduce((re, re_lo), AXIS, add_long)
            else:
                re, re_lo = tl.reduce((re, re_lo), AXIS, multiply_long)
            out = rounded(re, re_lo)
            return out, out
    elif PAIR:
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
