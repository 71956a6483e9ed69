"""fp8 to fp32 and back, against torch's own casts on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from interp import F8, torch_dtype

from aot.kernel_specs.reductions.fp8 import decode_fp8, encode_fp8

pytestmark = pytest.mark.interpreter

LARGEST = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
    "float8_e8m0fnu": 2.0**127,
}


@triton.jit
def decode_kernel(code_ptr, value_ptr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(value_ptr + at, decode_fp8(tl.load(code_ptr + at), DTYPE))


@triton.jit
def encode_kernel(value_ptr, code_ptr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(code_ptr + at, encode_fp8(tl.load(value_ptr + at), DTYPE))


def decode(codes: torch.Tensor, dtype: str) -> torch.Tensor:
    values = torch.empty(codes.numel(), dtype=torch.float32)
    decode_kernel[(1,)](codes, values, DTYPE=dtype, BLOCK=codes.numel())
    return values


def encode(values: torch.Tensor, dtype: str) -> torch.Tensor:
    padded = torch.zeros(1 << (values.numel() - 1).bit_length())
    padded[: values.numel()] = values
    codes = torch.empty(padded.numel(), dtype=torch.uint8)
    encode_kernel[(1,)](padded, codes, DTYPE=dtype, BLOCK=padded.numel())
    return codes[: values.numel()]


def codes() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8)


def bits(values: torch.Tensor) -> torch.Tensor:
    """fp32 bit patterns, every NaN the same."""
    return torch.where(values.isnan(), torch.tensor(float("nan")), values).view(torch.int32)


def probes() -> torch.Tensor:
    """fp32 numbers around every place where rounding changes: each code of each format, the
    midpoints between neighbours, and both fp32 neighbours of all of those; specials; random bits."""
    known = torch.cat([codes().view(torch_dtype(d)).to(torch.float32) for d in F8])
    known = known[known.isfinite()].unique()
    middles = ((known[1:].double() + known[:-1].double()) / 2).to(torch.float32)
    values = torch.cat([known, middles])
    infinity = torch.tensor(float("inf"))
    values = torch.cat([values, torch.nextafter(values, infinity), torch.nextafter(values, -infinity)])
    special = torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 1.1e-38, 3.4e38]
    )
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (200_000,), generator=generator, dtype=torch.int64)
    return torch.cat([values, -values, special, -special, random.to(torch.int32).view(torch.float32)])


@pytest.mark.parametrize("dtype", F8)
def test_every_code_decodes_to_torchs_value(dtype: str) -> None:
    assert torch.equal(bits(decode(codes(), dtype)), bits(codes().view(torch_dtype(dtype)).to(torch.float32)))


@pytest.mark.parametrize("dtype", F8)
def test_every_code_survives_the_round_trip(dtype: str) -> None:
    back = encode(decode(codes(), dtype), dtype)
    nan = codes().view(torch_dtype(dtype)).to(torch.float32).isnan()
    assert torch.equal(back[~nan], codes()[~nan])
    assert back.view(torch_dtype(dtype)).to(torch.float32)[nan].isnan().all()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype", F8)
def test_encoding_rounds_as_torch_does(dtype: str) -> None:
    """Every code, tie and neighbour of one. Overflow is ours: see the module's table."""
    values = probes()
    found = encode(values, dtype)
    # torch saturates some formats in some versions; what overflows has a test of its own.
    inside = values.abs() <= LARGEST[dtype]
    wanted = values.to(torch_dtype(dtype)).view(torch.uint8)
    assert torch.equal(found[inside], wanted[inside])


@pytest.mark.parametrize("dtype", F8)
def test_encoding_is_the_nearest_code(dtype: str) -> None:
    """No code of the format is nearer, whatever torch's cast may do."""
    table = codes().view(torch_dtype(dtype)).to(torch.float64).numpy()
    values = probes()
    values = values[values.isfinite() & (values.abs() <= LARGEST[dtype])]
    if dtype == "float8_e8m0fnu":
        values = values[values >= 2.0**-126]  # below, torch's rule is not the nearest
    given = values.double().numpy()
    found = table[encode(values, dtype).numpy()]
    order = np.sort(np.unique(table[np.isfinite(table)]))
    below = order[np.maximum(np.searchsorted(order, given, side="right") - 1, 0)]
    over = order[np.minimum(np.searchsorted(order, given, side="left"), len(order) - 1)]
    assert (np.abs(found - given) == np.minimum(given - below, over - given)).all()


@pytest.mark.parametrize(
    ("dtype", "value", "code"),
    [
        ("float8_e4m3fn", 448.0, 0x7E),
        ("float8_e4m3fn", 464.0, 0x7E),
        ("float8_e4m3fn", 465.0, 0x7F),
        ("float8_e4m3fn", -1000.0, 0xFF),
        ("float8_e4m3fn", float("inf"), 0x7F),
        ("float8_e4m3fn", float("-inf"), 0xFF),
        ("float8_e4m3fn", float("nan"), 0x7F),
        ("float8_e4m3fn", 2.0**-9, 0x01),
        ("float8_e4m3fn", 2.0**-10, 0x00),
        ("float8_e4m3fn", -0.0, 0x80),
        ("float8_e5m2", 57344.0, 0x7B),
        ("float8_e5m2", 61439.0, 0x7B),
        ("float8_e5m2", 61440.0, 0x7C),
        ("float8_e5m2", float("inf"), 0x7C),
        ("float8_e5m2", float("-inf"), 0xFC),
        ("float8_e5m2", float("nan"), 0x7F),
        ("float8_e4m3fnuz", 240.0, 0x7F),
        ("float8_e4m3fnuz", 247.0, 0x7F),
        ("float8_e4m3fnuz", 248.0, 0x80),
        ("float8_e4m3fnuz", float("inf"), 0x80),
        ("float8_e4m3fnuz", float("nan"), 0x80),
        ("float8_e4m3fnuz", -0.0, 0x00),
        ("float8_e4m3fnuz", -(2.0**-12), 0x00),
        ("float8_e5m2fnuz", 57344.0, 0x7F),
        ("float8_e5m2fnuz", 61440.0, 0x80),
        ("float8_e5m2fnuz", float("-inf"), 0x80),
        ("float8_e5m2fnuz", float("nan"), 0x80),
        ("float8_e5m2fnuz", -0.0, 0x00),
        ("float8_e8m0fnu", 0.0, 0x00),
        ("float8_e8m0fnu", 1.0, 0x7F),
        ("float8_e8m0fnu", -1.0, 0x7F),
        ("float8_e8m0fnu", 1.5, 0x80),
        ("float8_e8m0fnu", 2.0**127, 0xFE),
        ("float8_e8m0fnu", 1.6 * 2.0**127, 0xFF),
        ("float8_e8m0fnu", float("inf"), 0xFF),
        ("float8_e8m0fnu", float("nan"), 0xFF),
    ],
)
def test_overflow_zeros_and_specials(dtype: str, value: float, code: int) -> None:
    """Field case A21, for what a reduction stores: NaN stays NaN, nothing saturates."""
    assert encode(torch.tensor([value, 0.0]), dtype)[0].item() == code
