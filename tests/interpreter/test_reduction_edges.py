"""Where reductions have gone wrong in public: NaN, ties, zeros, padding, promotion, 64 bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from interp import F8, FLOATS, INTS, SIGNED, UNSIGNED, Geometry, Tiles, run_arg, run_reduce, torch_dtype
from reference import expected, expected_arg, same_bits, sample

pytestmark = pytest.mark.interpreter

INF, NAN = math.inf, math.nan
SPLIT = Tiles(out=2, red=8, n_splits=3, split=64)
WHOLE = Tiles(out=2, red=8)
ORDERED = (*FLOATS, *INTS, *F8)


def rows(op: str, x: torch.Tensor, out: str, tiles: Tiles = WHOLE, divisor: float = 1.0) -> torch.Tensor:
    return run_reduce(op, x, Geometry.rows(x), out, tiles=tiles, divisor=divisor)


def columns(op: str, x: torch.Tensor, out: str, tiles: Tiles = WHOLE) -> torch.Tensor:
    """Reduce dim 0."""
    return run_reduce(op, x, Geometry.strided(x, (0,)), out, tiles=tiles)


def arg_rows(op: str, x: torch.Tensor, tiles: Tiles = WHOLE) -> torch.Tensor:
    return run_arg(op, x, Geometry.rows(x), tiles=tiles)[1]


def arg_columns(op: str, x: torch.Tensor, tiles: Tiles = WHOLE) -> torch.Tensor:
    return run_arg(op, x, Geometry.strided(x, (0,)), tiles=tiles)[1]


@pytest.mark.parametrize("tiles", [WHOLE, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_wins(dtype: str, tiles: Tiles) -> None:
    """Field case A01: in the first, a middle and the last column, in the maximum's tile and in others."""
    x = sample("amax", dtype, (4, 150))
    x[:, 30] = INF
    x[:, 31] = -INF
    places = [0, 70, 149]
    x[[0, 1, 2], places] = NAN
    for op in ("amax", "amin"):
        assert same_bits(rows(op, x, dtype, tiles), expected(op, x, dtype))
        assert same_bits(columns(op, x.T, dtype, tiles), expected(op, x, dtype))
    for op, infinity in (("argmax", 30), ("argmin", 31)):
        wanted = [*places, infinity]
        assert arg_rows(op, x, tiles).tolist() == arg_columns(op, x.T, tiles).tolist() == wanted


def test_first_nan_wins_over_later_ones() -> None:
    x = torch.full((1, 150), NAN)
    x[0, :77] = 1.0
    for tiles in (WHOLE, SPLIT):
        assert arg_rows("argmax", x, tiles).item() == 77
        assert arg_columns("argmin", x.T, tiles).item() == 77


@pytest.mark.parametrize("dtype", ORDERED)
def test_ties_go_to_the_lowest_index(dtype: str) -> None:
    """Field case A02, and an all-equal row over a split boundary."""
    if dtype not in ("bool", *UNSIGNED, *F8):
        x = torch.tensor([[2, 3, 0, 3, 3], [1, 3, 1, 3, 1]]).to(torch_dtype(dtype))
        assert arg_rows("argmax", x).tolist() == [1, 1]
    same = torch.ones(1, 130).to(torch_dtype(dtype))
    for op in ("argmax", "argmin"):
        assert arg_rows(op, same, SPLIT).tolist() == arg_columns(op, same.T).tolist() == [0]


def test_ties_in_a_long_row() -> None:
    """Field case A02: zeros(1, 2001)."""
    assert arg_rows("argmax", torch.zeros(1, 2001), Tiles(out=1, red=64)).item() == 0


@pytest.mark.parametrize("tiles", [WHOLE, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
)
def test_signed_zeros(dtype: str, tiles: Tiles) -> None:
    """Field case A03: a maximum is +0 if there is a +0, a minimum -0 if there is a -0, in any order."""
    both = torch.tensor([[0.0, -0.0], [-0.0, 0.0]]).repeat(1, 75)
    late = torch.full((2, 150), -0.0)
    late[0, 140] = 0.0
    for values in (both, late) if tiles == WHOLE else (torch.cat([both, late, -late])[1:5],):
        x = values.to(torch_dtype(dtype))
        for op in ("amax", "amin"):
            assert same_bits(rows(op, x, dtype, tiles), expected(op, x, dtype))
            assert same_bits(columns(op, x.T, dtype, tiles), expected(op, x, dtype))
        assert not arg_rows("argmax", x, tiles).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_subnormals_are_kept(dtype: str) -> None:
    """Field case A07, for reductions."""
    tiny = torch.finfo(torch_dtype(dtype)).tiny
    x = torch.full((1, 20), tiny / 4, dtype=torch.float64).to(torch_dtype(dtype))
    assert rows("amax", x, dtype).item() == x[0, 0].item() != 0.0
    assert rows("sum", x, dtype).item() == tiny * 5
    assert rows("any", x, "bool").item() is True


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_sums_neither_overflow_on_the_way_nor_stall(dtype: str) -> None:
    """Field cases A08 and A09, in one split and in several, whose partials are fp32."""
    big = torch.tensor([[32000.0] * 80 + [-32000.0] * 80]).to(torch_dtype(dtype))
    ones = torch.ones(1, 4096).to(torch_dtype(dtype))
    for tiles in (WHOLE, SPLIT):
        assert rows("sum", big, dtype, tiles).item() == 0.0
    many = Tiles(out=1, red=64, n_splits=4, split=1024)
    assert rows("sum", ones, dtype, many).item() == 4096.0
    assert rows("sum", ones, dtype, many, divisor=4096.0).item() == 1.0
    mean = torch.full((1, 4), 60000.0).to(torch_dtype(dtype))
    assert rows("sum", mean, dtype, divisor=4.0).item() == mean[0, 0].item()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "uint16", "uint32"])
def test_integer_sums_promote(dtype: str) -> None:
    """Field cases A10 and A20: int64 on the way and in the result."""
    top = 1 if dtype == "bool" else torch.iinfo(torch_dtype(dtype)).max
    x = torch.full((1, 300), top, dtype=torch.int64).to(torch_dtype(dtype))
    wide = Tiles(out=1, red=64, n_splits=3, split=128)
    assert rows("sum", x, "int64", wide).item() == 300 * top
    assert rows("prod", x[:, :2], "int64").item() == (top * top + 2**63) % 2**64 - 2**63
    assert columns("sum", x.T, "int64").item() == 300 * top


def test_int64_sums_wrap_as_torch_does() -> None:
    x = torch.full((1, 3), 2**62, dtype=torch.int64)
    assert rows("sum", x, "int64").item() == x.sum().item() == 3 * 2**62 - 2**64


@pytest.mark.parametrize("count", [255, 256, 257, 512])
def test_sums_of_bools_count(count: int) -> None:
    """Field case A11: no xor, no truncation to one bit."""
    x = torch.zeros(1, 520, dtype=torch.bool)
    x[:, :count] = True
    tiles = Tiles(out=1, red=128)
    assert rows("sum", x, "int64", tiles).item() == count
    assert rows("any", x, "bool", tiles).item() is True
    assert rows("all", x[:, :count], "bool", tiles).item() is True
    assert rows("all", x, "bool", tiles).item() is False


def test_any_finds_one_in_many() -> None:
    """Field case A11: exactly one True in 100000."""
    x = torch.zeros(1, 100_000, dtype=torch.bool)
    x[0, 99_999] = True
    tiles = Tiles(out=1, red=256, n_splits=3, split=40_000)
    assert rows("any", x, "bool", tiles).item() is True
    assert rows("sum", x, "int64", tiles).item() == 1
    assert run_arg("argmax", x, Geometry.rows(x), tiles=tiles)[1].item() == 99_999


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_truth_of_bytes(dtype: str) -> None:
    """Field case A12: 2, 128 and 255 are true, and the result is 0 or 1, as uint8 for uint8."""
    out = "uint8" if dtype == "uint8" else "bool"
    data = torch.tensor([[0, 0, 0], [1, 2, 128], [128, 255, 2], [0, 128, 0]], dtype=torch.uint8)
    x = data.view(torch_dtype(dtype))
    for found, wanted in (
        (rows("any", x, out), [0, 1, 1, 1]),
        (rows("all", x, out), [0, 1, 1, 0]),
        (columns("any", x, out), [1, 1, 1]),
        (columns("all", x, out), [0, 0, 0]),
    ):
        assert found.dtype == torch_dtype(out)
        assert found.view(torch.uint8).tolist() == wanted


def test_truth_of_floats() -> None:
    """NaN and subnormals are true, negative zero is false, either part of a complex counts."""
    x = torch.tensor([[NAN], [-0.0], [1e-45], [0.0]])
    assert rows("any", x, "bool").tolist() == rows("all", x, "bool").tolist() == [True, False, True, False]
    z = torch.tensor([[0 + 1j], [1 + 0j], [complex(0.0, NAN)], [complex(-0.0, -0.0)]], dtype=torch.complex64)
    assert rows("all", z, "bool").tolist() == [True, True, True, False]


def test_unsigned_compare_and_are_exact() -> None:
    """Field case A13."""
    for tiles in (WHOLE, SPLIT):
        big = torch.tensor([[2**63 + 5, 3]], dtype=torch.uint64)
        assert rows("amax", big, "uint64", tiles).item() == 2**63 + 5
        assert rows("amin", big, "uint64", tiles).item() == 3
        assert arg_rows("argmax", big, tiles).item() == 0
        middle = torch.tensor([[2**31, 1]], dtype=torch.uint32)
        assert rows("amin", middle, "uint32", tiles).item() == 1
        assert rows("amax", middle, "uint32", tiles).item() == 2**31
        low_bits = torch.tensor([[2**64 - 2, 2**64 - 1]], dtype=torch.uint64)
        assert rows("amax", low_bits, "uint64", tiles).item() == 2**64 - 1
        assert arg_rows("argmax", low_bits, tiles).item() == 1
    assert rows("sum", torch.tensor([[65535, 65535]], dtype=torch.uint16), "int64").item() == 131070


@pytest.mark.parametrize("length", [20, 33, 130])
@pytest.mark.parametrize("dtype", ORDERED)
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_rows_of_the_identity(op: str, dtype: str, length: int) -> None:
    """Field case A14: padding holds the same value as the row, and loses."""
    if dtype in INTS:
        limits = np.iinfo(np.uint8 if dtype == "bool" else dtype)
        low, high = (0, 1) if dtype == "bool" else (int(limits.min), int(limits.max))
        worst = torch.tensor(low if op == "argmax" else high, dtype=torch_dtype(dtype))
    elif dtype in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        codes = torch.arange(256, dtype=torch.uint8).view(torch_dtype(dtype))
        table = codes.to(torch.float32).nan_to_num(0.0)
        worst = (table.min() if op == "argmax" else table.max()).to(torch_dtype(dtype))
    else:
        worst = torch.tensor(-INF if op == "argmax" else INF).to(torch_dtype(dtype))
    x = torch.stack([worst] * length).view(1, length)
    tiles = WHOLE if length < 100 else SPLIT
    values, indices = run_arg(op, x, Geometry.rows(x), tiles=tiles)
    assert indices.tolist() == [0]
    assert same_bits(values, x[:, 0])
    assert arg_columns(op, x.T, tiles).tolist() == [0]
    assert same_bits(rows("amax" if op == "argmax" else "amin", x, dtype, tiles), x[:, 0])


@pytest.mark.parametrize("length", [20, 33, 100])
def test_padding_never_wins(length: int) -> None:
    """Field case A15: positive data for argmin and negative for argmax, where a padding zero would win."""
    x = torch.rand(8, length, generator=torch.Generator().manual_seed(1)) + 1.0
    tiles = Tiles(out=4, red=32)
    for op, data in (("argmin", x), ("argmax", -x)):
        values, indices = run_arg(op, data, Geometry.rows(data), tiles=tiles)
        assert torch.equal(indices, expected_arg(op, data))
        assert torch.equal(values, data.gather(1, indices[:, None])[:, 0])
    assert torch.equal(rows("prod", -x[:1].to(torch.int64), "int64", tiles), (-x[:1].to(torch.int64)).prod(1))


@pytest.mark.parametrize("length", [65, 100, 101, 127])
def test_extents_that_are_no_power_of_two(length: int) -> None:
    """Field case A16: the middle dim, with a kept dim inside of it."""
    x = torch.randn(3, length, 5, generator=torch.Generator().manual_seed(2))
    tiles = Tiles(out=8, red=32)
    found = run_arg("argmax", x, Geometry.strided(x, (1,)), tiles=tiles)[1]
    assert torch.equal(found, x.argmax(1).flatten())
    assert torch.equal(
        run_reduce("amax", x, Geometry.strided(x, (1,)), "float32", tiles=tiles), x.amax(1).flatten()
    )


@pytest.mark.parametrize("length", [2**20 - 1, 2**20 + 1])
def test_extents_above_tritons_tensor_limit(length: int) -> None:
    """Field case A17: rows and columns."""
    x = torch.zeros(1, length, dtype=torch.int8)
    x[0, -1] = 1
    tiles = Tiles(out=1, red=1024)
    assert rows("sum", x, "int64", tiles).item() == 1
    assert arg_rows("argmax", x, tiles).item() == length - 1
    assert columns("amax", x.T, "int8", tiles).item() == 1


def test_fp64_stays_fp64() -> None:
    """Field case A18: no constant, divisor or accumulator on the way is fp32."""
    x = torch.tensor([[3.1415926, 1e-12, 2e50]], dtype=torch.float64)
    assert rows("amax", x, "float64").item() == 2e50
    thirds = torch.tensor([[1.0, 3.1415926, 1e-12]], dtype=torch.float64)
    wanted = math.fsum(thirds[0].tolist()) / 3.0
    assert abs(rows("sum", thirds, "float64", divisor=3.0).item() - wanted) < 1e-15 * wanted
    assert rows("sum", torch.ones(1, 10, dtype=torch.float64), "float64", divisor=0.1).item() == 10 / 0.1


def test_fp32_division_is_correctly_rounded() -> None:
    for divisor in range(1, 40):
        x = torch.tensor([[1.0], [7.0], [1e-40], [3e38]])
        assert torch.equal(rows("sum", x, "float32", divisor=divisor), x[:, 0] / divisor)


@pytest.mark.parametrize("dtype", F8)
def test_fp8_extrema_over_every_code(dtype: str) -> None:
    """Field case A22: codes compare as the floats they are, and one NaN code wins."""
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(torch_dtype(dtype)).to(torch.float32)
    numbers = codes[~values.isnan()]
    nans = codes[values.isnan()]
    tiles = Tiles(out=2, red=32, n_splits=2, split=128)
    # The first row is every number; each other one ends in a NaN code of its own.
    table = torch.stack([torch.cat([numbers, end.view(1)]) for end in (numbers[0], *nans)])
    x = table.view(torch_dtype(dtype))
    for op, arg in (("amax", "argmax"), ("amin", "argmin")):
        found = rows(op, x, dtype, tiles)
        assert same_bits(found[:1], expected(op, x[:1], dtype))
        assert found[1:].to(torch.float32).isnan().all()
        elements, indices = run_arg(arg, x, Geometry.rows(x), tiles=tiles)
        assert same_bits(elements[:1].to(torch.float32), found[:1].to(torch.float32))
        assert set(indices[1:].tolist()) == {len(numbers)}
        assert elements[1:].view(torch.uint8).tolist() == nans.tolist()
    if dtype == "float8_e4m3fn":
        assert rows("amax", x, dtype, tiles)[0].to(torch.float32).item() == 448.0


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("length", [4, 20, 120])
def test_complex_products(length: int, dtype: str) -> None:
    """Field case A26: a true complex product, over rows and over columns, in one split and in several."""
    x = torch.full((2, length), 1 + 1j, dtype=torch_dtype(dtype))
    wanted = (1 + 1j) ** 4 if length == 4 else (-4.0) ** (length // 4) + 0j
    for tiles in (WHOLE, SPLIT):
        assert rows("prod", x, dtype, tiles).tolist() == [wanted] * 2
        assert columns("prod", x.T, dtype, tiles).tolist() == [wanted] * 2
        assert rows("sum", x, dtype, tiles).tolist() == [length * (1 + 1j)] * 2


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
def test_complex_products_of_specials() -> None:
    """A one, and so the padding of a tile, leaves infinities, NaN parts and zeros as they are."""
    for value in (complex(INF, 1.0), complex(0.0, -INF), complex(NAN, 2.0), complex(3.0, -0.0), 0j):
        x = torch.tensor([[value, 1.0, 1.0]], dtype=torch.complex128)
        found = torch.view_as_real(rows("prod", x, "complex128"))
        assert same_bits(found, torch.view_as_real(x[:, 0]))
    zero = torch.tensor([[2 + 3j, 0j, 1 - 1j]], dtype=torch.complex128)
    assert rows("prod", zero, "complex128").item() == 0
    overflow = torch.tensor([[1e200 + 0j, 1e200 + 0j]], dtype=torch.complex128)
    assert rows("prod", overflow, "complex128").item().real == INF


@pytest.mark.parametrize("stride", [1, 12345, 0])
def test_dims_of_size_one(stride: int) -> None:
    """Field case A32: a size-1 dim has any stride, and its index is 0."""
    x = torch.arange(40.0).as_strided((33, 1), (1, stride))
    tiles = Tiles(out=16, red=4)
    for geometry in (Geometry.rows(x), Geometry.strided(x, (1,))):
        values, indices = run_arg("argmin", x, geometry, tiles=tiles)
        assert not indices.any()
        assert torch.equal(values, x[:, 0])
        assert torch.equal(run_reduce("sum", x, geometry, "float32", tiles=tiles), x[:, 0])
    zeros = torch.zeros(5, 3, 1)
    assert not run_arg("argmax", zeros, Geometry.strided(zeros, (2,)), tiles=tiles)[1].any()


@pytest.mark.parametrize("op", ["any", "all", "sum", "amax", "amin", "argmax"])
def test_bools_of_any_byte(op: str) -> None:
    """Field case B20: any nonzero byte of a bool view is true, and stored bools are 0 or 1."""
    x = torch.tensor([[0, 0, 2, 0], [255, 1, 128, 2], [0, 0, 0, 0]], dtype=torch.uint8).view(torch.bool)
    truth = x.view(torch.uint8) != 0
    for tiles in (WHOLE, SPLIT):
        if op == "argmax":
            values, indices = run_arg(op, x, Geometry.rows(x), tiles=tiles)
            assert indices.tolist() == [2, 0, 0]
            assert values.view(torch.uint8).tolist() == [1, 1, 0]
        else:
            out = "int64" if op == "sum" else "bool"
            found = rows(op, x, out, tiles)
            assert same_bits(found, expected(op, truth, out))
            assert out == "int64" or set(found.view(torch.uint8).tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("op", "dtype", "out", "wanted"),
    [
        ("sum", "float32", "float32", 0.0),
        ("sum", "int32", "int64", 0),
        ("sum", "complex64", "complex64", 0j),
        ("prod", "float32", "float32", 1.0),
        ("prod", "complex64", "complex64", 1 + 0j),
        ("prod", "uint64", "int64", 1),
        ("any", "float32", "bool", False),
        ("all", "float32", "bool", True),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_empty_reductions_give_the_identity(op: str, dtype: str, out: str, wanted: complex) -> None:
    """Field case A33, for a reduced extent of 0."""
    x = torch.empty(3, 0, dtype=torch_dtype(dtype))
    assert rows(op, x, out).tolist() == [wanted] * 3
    assert columns(op, x.T, out).tolist() == [wanted] * 3
    if op == "sum" and out != "int64":
        assert rows(op, x, out, divisor=0.0).isnan().all()


def test_values_only_where_asked() -> None:
    x = torch.randn(3, 150, generator=torch.Generator().manual_seed(3))
    for tiles in (WHOLE, SPLIT):
        found = run_arg("argmax", x, Geometry.rows(x), values=False, tiles=tiles)[1]
        assert torch.equal(found, x.argmax(1))
        found = run_arg("argmax", x, Geometry.strided(x, (1,)), values=False, tiles=tiles)[1]
        assert torch.equal(found, x.argmax(1))


def test_overlapping_and_expanded_strides() -> None:
    """Strides of 0 and windows over the same memory, kept and reduced."""
    base = torch.arange(10.0)
    windows = base.as_strided((4, 5), (1, 1))
    expanded = base[:4, None].expand(4, 6)
    for x in (windows, expanded, expanded.T):
        assert torch.equal(run_reduce("sum", x, Geometry.strided(x, (1,)), "float32"), x.sum(1))
    assert torch.equal(rows("sum", windows, "float32"), windows.sum(1))
    everything = Geometry.strided(expanded, (0, 1))
    assert run_reduce("sum", expanded, everything, "float32").item() == expanded.sum().item()


def test_negative_strides() -> None:
    """torch has none, but a caller may hand in the last element and count down."""
    base = torch.arange(12.0)
    last = base[11:]
    geometry = Geometry(kind="strided", n_out=3, n_red=4, strides=(1, 3, 0, 0, -4, 1, 4, 0, 0, -1))
    wanted = base.flip(0).view(3, 4).sum(1)
    assert torch.equal(run_reduce("sum", last, geometry, "float32"), wanted)


def test_offsets_are_64_bits_wide() -> None:
    """Field case A37, for reductions: a small view whose rows lie more than 2**31 bytes apart."""
    deep = torch.empty(2**31 + 200, dtype=torch.int8)
    x = deep.as_strided((2, 70), (2**31 + 100, 1), 7)
    x[0] = 1
    x[1] = 2
    wanted = [70, 140]
    assert rows("sum", x, "int64").tolist() == wanted
    assert run_reduce("sum", x, Geometry.strided(x, (1,)), "int64").tolist() == wanted
    assert columns("sum", x, "int64")[:2].tolist() == [3, 3]
    assert arg_columns("argmax", x)[:2].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_sums_of_random_numbers_are_near_fp64(dtype: str) -> None:
    """One rounding to the result, and fp32's error on the way: no more."""
    x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(4)).to(torch_dtype(dtype))
    tiles = Tiles(out=4, red=32)
    truth = x.double().sum(1)
    found = rows("sum", x, dtype, tiles).double()
    place = torch.finfo(torch_dtype(dtype)).eps * truth.abs()
    assert ((found - truth).abs() <= 0.5 * place + 32 * 2.0**-24 * x.double().abs().sum(1) / 32).all()


def test_the_answer_does_not_depend_on_the_split_that_merges() -> None:
    """Partial results are merged in a fixed order: two launches agree bit for bit."""
    x = torch.randn(2, 190, generator=torch.Generator().manual_seed(5))
    once, again = (rows("sum", x, "float32", SPLIT) for _ in range(2))
    assert same_bits(once, again)


def test_int_min_survives_a_maximum() -> None:
    for dtype in SIGNED:
        low = torch.iinfo(torch_dtype(dtype)).min
        x = torch.full((1, 21), low, dtype=torch_dtype(dtype))
        assert rows("amax", x, dtype).item() == columns("amax", x.T, dtype).item() == low
