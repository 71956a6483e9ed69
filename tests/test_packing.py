"""Scalars are packed by the kernel's type: right bytes, one rounding, nothing that does not fit."""

from __future__ import annotations

import ctypes
import math
import struct
from fractions import Fraction
from pathlib import Path

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pointer, scalar, variant
from hypothesis import example, given
from hypothesis import strategies as st

from aot.errors import BundleError, LaunchError
from aot.loader.packing import Layout, bfloat16_bits, pack_scalar, scalar_fault
from aot.manifest import Binary, CubinRef, Entry
from aot.reader import BundleReader

INTS = {
    "i1": (0, 1, 1),
    "i8": (-(2**7), 2**7 - 1, 1),
    "i16": (-(2**15), 2**15 - 1, 2),
    "i32": (-(2**31), 2**31 - 1, 4),
    "i64": (-(2**63), 2**63 - 1, 8),
    "u8": (0, 2**8 - 1, 1),
    "u16": (0, 2**16 - 1, 2),
    "u32": (0, 2**32 - 1, 4),
    "u64": (0, 2**64 - 1, 8),
}
NAMES = {
    "i1": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
}
# bytes, exponent of the smallest bit, largest finite value, bits of mantissa
FLOATS = {
    "fp16": (2, -24, 65504.0, 11),
    "bf16": (2, -133, float(2**128 - 2**120), 8),
    "fp32": (4, -149, float(2**128 - 2**104), 24),
}


@pytest.mark.parametrize("type_", INTS)
def test_integers_at_the_edges(type_: str) -> None:
    """Field case B06: a value that does not fit is refused, never truncated."""
    low, high, size = INTS[type_]
    for value in {low, high, 0, 1}:
        assert pack_scalar(type_, value) == value.to_bytes(size, "little", signed=low < 0)
    for value in (low - 1, high + 1):
        assert scalar_fault("n", type_, value) == f"n = {value} does not fit {NAMES[type_]}"
        with pytest.raises(LaunchError, match=rf"^n = {value} does not fit {NAMES[type_]}$"):
            pack_scalar(type_, value, "n")


@pytest.mark.parametrize("type_", INTS)
def test_bools_are_integers_and_floats_are_not(type_: str) -> None:
    assert pack_scalar(type_, True) == pack_scalar(type_, 1)
    assert pack_scalar(type_, False) == pack_scalar(type_, 0)
    assert scalar_fault("n", type_, 2.0) == f"n = 2.0 is a float, n is {NAMES[type_]}"


@given(st.sampled_from(sorted(INTS)), st.integers(-(2**65), 2**65))
def test_every_integer_is_exact_or_refused(type_: str, value: int) -> None:
    low, high, _ = INTS[type_]
    if low <= value <= high:
        assert scalar_fault("n", type_, value) is None
        assert int.from_bytes(pack_scalar(type_, value), "little", signed=low < 0) == value
    else:
        assert scalar_fault("n", type_, value) is not None


def decoded(type_: str, data: bytes) -> float:
    """The value of a packed float."""
    if type_ == "bf16":
        return float(struct.unpack("<f", b"\0\0" + data)[0])
    return float(struct.unpack({"fp16": "<e", "fp32": "<f"}[type_], data)[0])


def nearest(value: Fraction, lowest: int, bits: int) -> Fraction:
    """The multiple of the last bit's weight nearest to ``value``, half to even: IEEE 754's definition."""
    exponent = lowest
    while abs(value) >= Fraction(2) ** (exponent + bits):
        exponent += 1
    unit = Fraction(2) ** exponent
    return round(value / unit) * unit


@pytest.mark.parametrize("type_", FLOATS)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
@example(value=0.1)
@example(value=5e-324)
@example(value=65519.99999999999)
@example(value=65520.0)
@example(value=1 + 2**-8 + 2**-40)
@example(value=1 + 2**-8)
@example(value=1 + 3 * 2**-8)
@example(value=2**-134)
@example(value=math.nextafter(2**-134, 1))
@example(value=-(2.0**127) * (2 - 2**-8))
@example(value=math.nextafter(2.0**127 * (2 - 2**-8), 0))
def test_floats_are_rounded_once(type_: str, value: float) -> None:
    size, lowest, largest, bits = FLOATS[type_]
    wanted = nearest(Fraction(value), lowest, bits)
    if abs(wanted) > largest:
        names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
        assert scalar_fault("eps", type_, value) == f"eps = {value!r} does not fit {names[type_]}"
        return
    data = pack_scalar(type_, value)
    assert len(data) == size
    assert Fraction(decoded(type_, data)) == wanted
    assert math.copysign(1, decoded(type_, data)) == math.copysign(1, value)


def test_bfloat16_is_not_rounded_by_way_of_float32() -> None:
    """1 + 2**-8 + 2**-40 lies above the tie between two bfloat16; as float32 it is that tie, and falls."""
    assert bfloat16_bits(1 + 2**-8) == 0x3F80
    assert bfloat16_bits(1 + 2**-8 + 2**-40) == 0x3F81


@pytest.mark.parametrize(
    ("type_", "value", "data"),
    [
        ("fp16", math.inf, "007c"),
        ("fp16", -math.inf, "00fc"),
        ("bf16", math.inf, "807f"),
        ("bf16", -math.inf, "80ff"),
        ("fp32", math.inf, "0000807f"),
        ("fp64", -math.inf, "000000000000f0ff"),
        ("fp32", -0.0, "00000080"),
        ("bf16", -0.0, "0080"),
        ("fp32", 0.1, "cdcccc3d"),
        ("fp64", 0.1, "9a9999999999b93f"),
        ("bf16", 0.1, "cd3d"),
        ("fp32", 1, "0000803f"),
        ("fp64", True, "000000000000f03f"),
    ],
)
def test_floats_by_their_bytes(type_: str, value: float, data: str) -> None:
    """Field case B23: 4 or 8 bytes by the kernel's type; an int will do for a float."""
    assert pack_scalar(type_, value).hex() == data


@pytest.mark.parametrize(("type_", "unpack"), [("fp16", "<e"), ("fp32", "<f"), ("fp64", "<d")])
def test_nan_stays_nan(type_: str, unpack: str) -> None:
    assert math.isnan(struct.unpack(unpack, pack_scalar(type_, math.nan))[0])
    assert bfloat16_bits(math.nan) == 0x7FC0


@pytest.mark.parametrize(("type_", "name"), [("fp16", "float16"), ("fp32", "float32"), ("fp64", "float64")])
def test_an_int_too_large_for_a_float_is_refused(type_: str, name: str) -> None:
    assert scalar_fault("eps", type_, 10**400) == f"eps = {10**400} does not fit {name}"


def entry(*args: object, params: list[tuple[int, int]], hidden: int = 0) -> Entry:
    """An entry whose cubin records ``params``."""
    ref = CubinRef(sha256="0" * 64, offset=16, size=1, raw_size=1, codec="none")
    binary = Binary(
        symbol="k",
        cubin=ref,
        params=tuple(params),
        hidden=hidden,
        shared=0,
        registers=1,
        local=0,
        scratch=(0, 1),
    )
    return Entry(variant=variant(*args), binary=binary)  # type: ignore[arg-type]


def test_buffer_and_addresses() -> None:
    """Field case B23: each scalar at the cubin's offset, so that what follows is not shifted."""
    made = entry(
        pointer("x"),
        scalar("flag", "i1"),
        scalar("half", "fp16"),
        scalar("one", "i32", "1"),
        constexpr("BLOCK", 128),
        scalar("brain", "bf16"),
        scalar("eps", "fp32"),
        scalar("n", "i64"),
        params=[(0, 8), (8, 1), (10, 2), (12, 2), (16, 4), (24, 8), (32, 8), (40, 8)],
        hidden=2,
    )
    layout = Layout.of(made, "b")
    assert layout.names == ("x", "flag", "half", "brain", "eps", "n")
    buffer = layout.pack([2**40, True, 1.5, 0.1, 1, -5], [2**41, 0])
    assert layout.size == 48
    assert buffer.raw[: layout.size].hex() == (
        "0000000000010000" "01" "00" "003e" "cd3d" "0000" "0000803f" "00000000" "fbffffffffffffff"
        "0000000000020000" "0000000000000000"
    )  # fmt: skip
    base = ctypes.addressof(buffer)
    addresses = struct.unpack("<8Q", buffer.raw[layout.size :])
    assert [a - base for a in addresses] == [0, 8, 10, 12, 16, 24, 32, 40]


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ([(0, 8)], "found parameters of 8 bytes in the cubin, wanted 8, 4"),
        ([(0, 8), (8, 8)], "found parameters of 8, 8 bytes in the cubin, wanted 8, 4"),
        ([(0, 8), (8, 4), (16, 8)], "found parameters of 8, 4, 8 bytes in the cubin, wanted 8, 4"),
        ([], "found parameters of no bytes in the cubin, wanted 8, 4"),
        ([(0, 8), (4, 4)], "found a parameter at offset 4 inside the one before it, which ends at 8"),
    ],
)
def test_a_cubin_with_other_parameters_is_refused(params: list[tuple[int, int]], fault: str) -> None:
    """Field cases B03 and B06."""
    with pytest.raises(BundleError) as refused:
        Layout.of(entry(pointer("x"), scalar("n"), params=params), "bundle")
    assert str(refused.value) == f"bundle: {fault}; the bundle is inconsistent, build it again"


def test_layout_of_a_kernel_without_parameters() -> None:
    layout = Layout.of(entry(constexpr("N", 1), params=[]), "b")
    assert layout.pack([], []).raw == b""


@given(st.lists(st.sampled_from([*sorted(INTS), "fp16", "bf16", "fp32", "fp64", "*"]), max_size=12))
def test_every_parameter_is_where_the_cubin_reads_it(types: list[str]) -> None:
    args = [pointer(f"p{i}") if t == "*" else scalar(f"p{i}", t) for i, t in enumerate(types)]
    records, end = [], 0
    sizes = {t: len(pack_scalar(t, 1)) for t in types if t != "*"} | {"*": 8}
    for t in types:
        offset = -(-end // sizes[t]) * sizes[t]
        records.append((offset, sizes[t]))
        end = offset + sizes[t]
    layout = Layout.of(entry(*args, params=records), "b")
    buffer = layout.pack([1] * len(types), [])
    for t, (offset, size) in zip(types, records, strict=True):
        wanted = (1).to_bytes(8, "little") if t == "*" else pack_scalar(t, 1)
        assert buffer.raw[offset : offset + size] == wanted


def test_layouts_of_a_bundle(tmp_path: Path) -> None:
    """The records that a second writer made agree with the layout."""
    path = make_bundle(
        tmp_path / "b",
        Draft(variants=[variant(scalar("a", "i8"), pointer("x"), scalar("b", "fp16"), scalar("c", "fp64"))]),
    )
    with BundleReader(path) as reader:
        (found,) = reader.table(reader.manifest.kernels[0].tables[0])
        assert Layout.of(found, "b").offsets == (0, 8, 16, 24, 32, 40)
