"""Sums and products of fp64 as unevaluated pairs ``hi + lo``: about twice the significand.

No wider type exists to accumulate fp64 in, so the rounding error of each operation is kept
beside the result. Error-free sum: Knuth, TAOCP 2, 4.2.2; error-free product with fma, and
carrying the errors to the end: Ogita, Rump, Oishi, "Accurate Sum and Dot Product", SIAM J. Sci.
Comput. 26 (2005). ``hi`` alone is what plain arithmetic gives, infinities and NaNs included;
``lo`` is ignored where it is not finite. Complex numbers have a pair for each part.
"""

import triton
import triton.language as tl


@triton.jit
def two_sum(a, b):
    """Return the rounded sum and its error."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@triton.jit
def two_product(a, b):
    """Return the rounded product and its error."""
    product = a * b
    return product, tl.fma(a, b, -product)


@triton.jit
def add_long(a, a_lo, b, b_lo):
    total, error = two_sum(a, b)
    return total, a_lo + b_lo + error


@triton.jit
def multiply_long(a, a_lo, b, b_lo):
    product, error = two_product(a, b)
    return product, a * b_lo + a_lo * b + error


@triton.jit
def add_long_pair(a_re, a_im, a_re_lo, a_im_lo, b_re, b_im, b_re_lo, b_im_lo):
    re, re_lo = add_long(a_re, a_re_lo, b_re, b_re_lo)
    im, im_lo = add_long(a_im, a_im_lo, b_im, b_im_lo)
    return re, im, re_lo, im_lo


@triton.jit
def multiply_long_pair(a_re, a_im, a_re_lo, a_im_lo, b_re, b_im, b_re_lo, b_im_lo):
    """The complex product; one leaves the other factor as it is, see ``combine.multiply_pair``."""
    rr, rr_lo = multiply_long(a_re, a_re_lo, b_re, b_re_lo)
    ii, ii_lo = multiply_long(a_im, a_im_lo, b_im, b_im_lo)
    ri, ri_lo = multiply_long(a_re, a_re_lo, b_im, b_im_lo)
    ir, ir_lo = multiply_long(a_im, a_im_lo, b_re, b_re_lo)
    re, re_lo = add_long(rr, rr_lo, -ii, -ii_lo)
    im, im_lo = add_long(ri, ri_lo, ir, ir_lo)
    a_one = (a_re == 1) & (a_im == 0) & (a_re_lo == 0) & (a_im_lo == 0)
    b_one = (b_re == 1) & (b_im == 0) & (b_re_lo == 0) & (b_im_lo == 0)
    re = tl.where(b_one, a_re, tl.where(a_one, b_re, re))
    im = tl.where(b_one, a_im, tl.where(a_one, b_im, im))
    re_lo = tl.where(b_one, a_re_lo, tl.where(a_one, b_re_lo, re_lo))
    im_lo = tl.where(b_one, a_im_lo, tl.where(a_one, b_im_lo, im_lo))
    return re, im, re_lo, im_lo


@triton.jit
def rounded(hi, lo):
    """Return ``hi + lo`` in one number. A ``lo`` that overflowed on the way has nothing to say,
    and one that is zero must not change the sign of a ``hi`` that is."""
    return tl.where((lo - lo == 0) & (lo != 0), hi + lo, hi)
