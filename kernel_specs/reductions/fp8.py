"""The five fp8 formats in our own arithmetic: from a code to fp32, and from fp32 to a code.

GPUs, Triton versions and Triton's interpreter do not agree here: Triton has no e8m0 and no
fnuz formats on NVIDIA GPUs, has e4m3fn only from capability 8.9, and its conversions saturate
where torch's do not. This arithmetic is the same everywhere.

Encoding rounds once, to nearest, ties to even, and never saturates. What overflows becomes
what torch's casts made of it up to 2.11 (later ones saturate e4m3fn on some devices):

=============  ================================  ========  ==============
format         a magnitude that rounds above     infinity  NaN
=============  ================================  ========  ==============
e4m3fn         448 (so, above 464): NaN          NaN       NaN
e5m2           57344 (from 61440): infinity      infinity  NaN
e4m3fnuz       240 (from 248): NaN               NaN       NaN (0x80)
e5m2fnuz       57344 (from 61440): NaN           NaN       NaN (0x80)
e8m0fnu        2**127: NaN                       NaN       NaN (0xff)
=============  ================================  ========  ==============

e8m0fnu holds the powers of two from 2**-127 to 2**127 and NaN, and nothing else. As in torch the
sign is dropped, zero becomes 2**-127, a tie goes up, and what lies above 2**-127 goes up to
2**-126 even where 2**-127 is nearer.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def is_fp8(dtype):
    """Say whether torch's dtype ``dtype`` is one of the five."""
    return dtype.startswith("float8_")


@triton.constexpr_function
def mantissa_bits(dtype):
    """Stored mantissa bits of a format that has a mantissa."""
    return 3 if dtype.startswith("float8_e4m3") else 2


@triton.constexpr_function
def exponent_bias(dtype):
    """What the stored exponent is larger by. The fnuz formats have one more than IEEE's rule."""
    return (7 if dtype.startswith("float8_e4m3") else 15) + dtype.endswith("fnuz")


@triton.constexpr_function
def rebias(dtype):
    """The factor that turns fp32's exponent bias into the format's."""
    return 2.0 ** (127 - exponent_bias(dtype))


@triton.jit
def decode_fp8(code, DTYPE: tl.constexpr):
    """Return the fp32 values of the uint8 tensor ``code`` in the format ``DTYPE``, exactly."""
    wide = code.to(tl.uint32)
    if DTYPE == "float8_e8m0fnu":
        bits = tl.where(wide == 0, 0x00400000, wide << 23)
        bits = tl.where(wide == 0xFF, 0x7FC00000, bits)
    else:
        # Exponent and mantissa move into fp32's fields, and one multiplication by a power of
        # two mends the bias and normalises subnormals: its result is a normal number or zero.
        magnitude = wide & 0x7F
        moved = (magnitude << (23 - mantissa_bits(DTYPE))).to(tl.float32, bitcast=True)
        bits = (moved * rebias(DTYPE)).to(tl.uint32, bitcast=True)
        if DTYPE == "float8_e4m3fn":
            bits = tl.where(magnitude == 0x7F, 0x7FC00000, bits)
        elif DTYPE == "float8_e5m2":
            bits = tl.where(magnitude == 0x7C, 0x7F800000, bits)
            bits = tl.where(magnitude > 0x7C, 0x7FC00000, bits)
        else:
            bits = tl.where(wide == 0x80, 0x7FC00000, bits)
        bits = bits | ((wide & 0x80) << 24)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def encode_fp8(value, DTYPE: tl.constexpr):
    """Return the uint8 codes of the fp32 tensor ``value`` in the format ``DTYPE``, rounded once."""
    bits = value.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    sign = (bits >> 24) & 0x80
    if DTYPE == "float8_e8m0fnu":
        exponent = magnitude >> 23
        rest = magnitude & 0x7FFFFF
        up = (rest > 0x400000) | ((rest == 0x400000) & (exponent > 0))
        code = tl.where(up & (exponent < 0xFF), exponent + 1, exponent)
    else:
        M: tl.constexpr = mantissa_bits(DTYPE)
        BIAS: tl.constexpr = exponent_bias(DTYPE)
        SHIFT: tl.constexpr = 23 - M
        # A carry out of the mantissa raises the exponent, which is the next number up.
        odd = (magnitude >> SHIFT) & 1
        normal = ((magnitude + odd + ((1 << (SHIFT - 1)) - 1)) >> SHIFT) - ((127 - BIAS) << M)
        # Below the smallest normal number: adding the power of two whose last place is the
        # format's smallest subnormal makes fp32's own addition round there.
        MAGIC: tl.constexpr = 2.0 ** (24 - BIAS - M)
        MAGIC_BITS: tl.constexpr = (151 - BIAS - M) << 23
        shifted = magnitude.to(tl.float32, bitcast=True) + MAGIC
        subnormal = shifted.to(tl.uint32, bitcast=True) - MAGIC_BITS
        code = tl.where(magnitude < ((128 - BIAS) << 23), subnormal, normal)
        if DTYPE == "float8_e4m3fn":
            code = tl.minimum(code, 0x7F) | sign
        elif DTYPE == "float8_e5m2":
            code = tl.where(magnitude > 0x7F800000, 0x7F, tl.minimum(code, 0x7C)) | sign
        else:
            # Negative zero's code is the one NaN; a negative number that rounds to zero is zero.
            code = tl.where(code >= 0x80, 0x80, tl.where(code == 0, 0, code | sign))
    return code.to(tl.uint8)
