"""What an element is inside a reduction: how it is read, its neutral value, how it is written.

Reads are narrow and accumulation is wide. The accumulator's type is the element type of the
kernel's partial pointer. Complex elements are pairs of lanes (real, imaginary): sums and
products carry both, ``re`` and ``im``; every other operation leaves ``im`` as it is.
"""

import triton
import triton.language as tl

from .fp8 import decode_fp8, encode_fp8, is_fp8


@triton.constexpr_function
def lanes_of(dtype):
    """Scalars that one element of torch's dtype ``dtype`` has in memory."""
    return 2 if dtype.startswith("complex") else 1


@triton.constexpr_function
def carries_pair(op, dtype):
    """Say whether ``op`` on ``dtype`` accumulates a complex number."""
    return dtype.startswith("complex") and op in ("sum", "prod")


@triton.constexpr_function
def identity_of(op, acc):
    """The neutral value of ``op`` in the Triton type ``acc``, and for the extrema the worst one.

    Integers get integers: infinity has no place in them, and a float would lose low bits.
    """
    if op in ("sum", "any"):
        return 0
    if op in ("prod", "all"):
        return 1
    lowest = op in ("amax", "argmax")
    if acc.is_floating():
        return float("-inf") if lowest else float("inf")
    bits = acc.primitive_bitwidth
    if acc.is_int_unsigned():
        return 0 if lowest else 2**bits - 1
    return -(2 ** (bits - 1)) if lowest else 2 ** (bits - 1) - 1


@triton.constexpr_function
def lane_type(op, dtype, acc):
    """The type that a program accumulates in, at most 2**23 elements: less costly than ``acc``
    where that many bytes cannot overflow it."""
    return tl.int32 if op == "sum" and dtype in ("int8", "uint8", "bool") else acc


@triton.jit
def widen(raw, ACC: tl.constexpr, DTYPE: tl.constexpr):
    """Return the values of ``raw``, a tensor as loaded, in the type ``ACC``."""
    if is_fp8(DTYPE) and raw.dtype == tl.uint8:
        return decode_fp8(raw, DTYPE)
    elif DTYPE == "bfloat16":
        # What the hardware does too. The interpreter's own cast loses subnormals.
        return (raw.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return raw.to(ACC)


@triton.jit
def is_true(raw, DTYPE: tl.constexpr):
    """Return whether each element of ``raw`` counts as true: NaN does, negative zero does not."""
    if is_fp8(DTYPE) or DTYPE == "bfloat16":
        return widen(raw, tl.float32, DTYPE) != 0
    else:
        return raw != 0


@triton.jit
def read_pair(re, im, OP: tl.constexpr, ACC: tl.constexpr, DTYPE: tl.constexpr):
    """Turn loaded lanes into accumulator values. ``im`` is ignored where elements are real."""
    if OP == "any" or OP == "all":
        true = is_true(re, DTYPE)
        if lanes_of(DTYPE) == 2:
            true = true | is_true(im, DTYPE)
        value = true.to(ACC)
        return value, value
    else:
        value = widen(re, ACC, DTYPE)
        if lanes_of(DTYPE) == 2:
            return value, widen(im, ACC, DTYPE)
        else:
            return value, value


@triton.jit
def read_lanes(
    raw, ROWS: tl.constexpr, COLS: tl.constexpr, OP: tl.constexpr, ACC: tl.constexpr, DTYPE: tl.constexpr
):
    """Turn a loaded tile of lanes, [ROWS, COLS * lanes], into accumulator values, [ROWS, COLS]."""
    if lanes_of(DTYPE) == 2:
        re, im = tl.split(tl.reshape(raw, [ROWS, COLS, 2]))
        return read_pair(re, im, OP, ACC, DTYPE)
    else:
        return read_pair(raw, raw, OP, ACC, DTYPE)


@triton.jit
def strided_offset(index, extent, n1, n2, s0, s1, s2):
    """Return the offset of each linear ``index`` below ``extent``, the product of three dims.

    The two inner ones have ``n1`` and ``n2`` elements; the strides are ``s0``, ``s1``, ``s2``.
    Everything is 64 bits wide. One dim alone, the common case, takes no division.
    """
    if n2 == extent:
        offset = index * s2
    else:
        # No index is negative: unsigned division spares the handling of signs.
        row = (index.to(tl.uint64) // n2.to(tl.uint64)).to(tl.int64)
        top = (row.to(tl.uint64) // n1.to(tl.uint64)).to(tl.int64)
        offset = top * s0 + (row - top * n1) * s1 + (index - row * n2) * s2
    return offset


@triton.constexpr_function
def merge_width(outputs, paired):
    """How many splits of a tile of ``outputs`` results are merged side by side.

    Few, half as many where each is a pair, lest the merge take the registers that loads need.
    """
    return max(1, (256 if paired else 512) // outputs)


@triton.jit
def round_to_bfloat16(value):
    """Round fp32 to nearest, ties to even, in integers: the interpreter's own cast truncates."""
    bits = value.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    code = tl.where(value != value, 0x7FC0, rounded)
    return code.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def narrow(value, out_ptr, OUT_DTYPE: tl.constexpr):
    """Return ``value``, an accumulator, in the type that ``out_ptr`` stores, rounded once."""
    if is_fp8(OUT_DTYPE):
        return encode_fp8(value, OUT_DTYPE).to(out_ptr.dtype.element_ty, bitcast=True)
    elif OUT_DTYPE == "bfloat16":
        return round_to_bfloat16(value)
    elif OUT_DTYPE == "bool":
        return value != 0
    else:
        return value.to(out_ptr.dtype.element_ty)
