"""Expressions and scalars in the C API, beside ``aot.expr`` and ``aot.loader.packing``."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from capi import Probe, number
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aot.expr import Expr, ExprError
from aot.loader.packing import pack_scalar, scalar_fault


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    with Probe() as running:
        yield running


# Expressions.

INTEGERS = st.integers(0, 70) | st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1])
LEAVES = INTEGERS.map(str) | st.sampled_from(["n", "m", "k", "$tile", "unknown"])
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        inner.map("next_power_of_2({})".format),
        st.tuples(inner, inner).map(lambda pair: "cdiv({}, {})".format(*pair)),
        st.tuples(st.sampled_from(["min", "max"]), st.lists(inner, min_size=2, max_size=4)).map(
            lambda call: f"{call[0]}({', '.join(call[1])})"
        ),
    ),
    max_leaves=12,
)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-20, 20)


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
@example("-n // m", 7, -2, 0, 0)
@example("n * m", 2**64 - 1, 2**64 - 1, 0, 0)
@example("n * m", -(2**63), 2**64 - 1, 0, 0)
@example("cdiv(n, m)", -(2**63), -1, 0, 0)
@example("next_power_of_2(n)", 2**63 + 1, 0, 0, 0)
def test_expressions(probe: Probe, text: str, n: int, m: int, k: int, tile: int) -> None:
    """The same normal form, value and fault; floor division, and no value beyond 64 bits."""
    names = {"n": n, "m": m, "k": k, "$tile": tile}
    try:
        expr = Expr.parse(text)
    except ExprError:
        assert probe.fault("expr", text).startswith(f"here: found expression '{text[:200]}")
        return
    answer = probe("expr", text, *(f"{name}={value}" for name, value in names.items()))
    bound = expr.names() <= names.keys()
    try:
        value = str(expr.evaluate(names))
    except ExprError as error:
        value = str(error)
    if "'unknown'" in value:
        assert answer[3].startswith("found 'unknown', wanted one of n, m, k, $tile")
        value = answer[3]
    assert answer == ["ok", str(expr), str(int(bound)), value]


NO_EXPRESSION = (
    *(
        "",
        " ",
        "+",
        "n +",
        "+ n",
        "n n",
        "n 1",
        "1n",
        "(n",
        "n)",
        "()",
        "n // // m",
        "n / m",
        "n % m",
        "n ** m",
    ),
    *(
        "n.m",
        "$",
        "$1",
        "$$n",
        "f(n)",
        "min(n)",
        "cdiv(n)",
        "cdiv(n, m, k)",
        "next_power_of_2(n, m)",
        "min()",
    ),
    *(
        "min(n,)",
        "min(,n)",
        "n,",
        "é",
        "n\x01",
        "9223372036854775808",
        "99999999999999999999999",
        "min n",
        "n =",
    ),
    *(
        "-" * 60 + "n",
        "(" * 60 + "n" + ")" * 60,
        " + ".join(["n"] * 120),
        "n" * 202,
        "__import__('os')",
        "n;m",
    ),
)


@pytest.mark.parametrize("text", NO_EXPRESSION)
def test_what_is_no_expression(probe: Probe, text: str) -> None:
    with pytest.raises(ExprError):
        Expr.parse(text)
    assert "in the bundle: found " in probe.fault("expr", text)


@settings(max_examples=500, deadline=None)
@given(st.text("nm$1 9+-*/(),_cdivxpowert2", max_size=12))
def test_noise_as_an_expression(probe: Probe, text: str) -> None:
    """What the Python parser takes, C takes, with the same normal form."""
    answer = probe("expr", text)
    try:
        expr = Expr.parse(text)
    except ExprError:
        assert answer[0] == "error"
    else:
        assert answer[:2] == ["ok", str(expr)]


def test_the_longest_expression(probe: Probe) -> None:
    """The limits are where the other parser has them."""
    text = " + ".join(["n"] * 100)
    assert probe("expr", text, "n=2") == ["ok", text, "1", "200"]
    nested = "(" * 49 + "n" + ")" * 49
    assert probe("expr", nested, "n=2") == ["ok", "n", "1", "2"]


# Scalars.

TYPES = ("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp16", "bf16", "fp32", "fp64")
HALVES = st.integers(0, 2**16 - 1).map(lambda bits: struct.unpack("<e", struct.pack("<H", bits))[0])
BRAINS = st.integers(0, 2**16 - 1).map(lambda bits: struct.unpack("<f", struct.pack("<I", bits << 16))[0])
FLOATS = st.floats() | HALVES | BRAINS | st.floats(width=32) | st.floats(-7e4, 7e4)
# Ties between two neighbours of each type, and a hair beside them.
TIES = st.builds(
    lambda base, other, hair: (base + other) / 2 * (1 + hair * 2.0**-52),
    HALVES | BRAINS,
    HALVES | BRAINS,
    st.integers(-1, 1),
)


@settings(max_examples=1500, deadline=None)
@given(
    st.sampled_from(TYPES),
    st.one_of(st.booleans(), st.integers(-(2**63), 2**64 - 1), st.integers(-300, 70_000), FLOATS, TIES),
)
@example("fp16", 65519.99)
@example("fp16", 65520.0)
@example("bf16", 3.3961775292304957e38)
@example("fp32", 3.4028235677973366e38)
@example("fp32", 3.4028235677973362e38)
@example("bf16", 1.00390625)
@example("bf16", 1.0039062500000002)
@example("fp16", 5e-324)
@example("bf16", 2.0**-134)
@example("bf16", 2.0**-133 * 1.5)
@example("fp64", 2**64 - 1)
@example("fp32", 16777217)
@example("fp16", float("-inf"))
def test_scalars(probe: Probe, type_: str, value: Any) -> None:
    """Field cases B03, B06, B23: the same bytes, rounded once, or the same reason why not."""
    fault = scalar_fault("value", type_, value)
    answer = probe("pack", type_, "=" + number(value))
    if fault is not None:
        assert answer == ["error", fault]
    elif value != value:
        # A NaN stays one; which, differs between releases of Python.
        bits, size = int.from_bytes(bytes.fromhex(answer[1]), "little"), len(answer[1]) * 4
        exponent = {"fp16": 0x7C00, "bf16": 0x7F80, "fp32": 0x7F800000, "fp64": 0x7FF << 52}[type_]
        assert bits & exponent == exponent
        assert bits & ~exponent & (1 << size - 1) - 1
    else:
        assert answer == ["ok", pack_scalar(type_, value).hex()]


def test_every_half(probe: Probe) -> None:
    """Every fp16 and bf16 value keeps its bits, and rounds up from behind the middle to the next."""
    for step in range(0, 2**16, 37):
        half = struct.unpack("<e", struct.pack("<H", step))[0]
        if half == half:
            assert probe("pack", "fp16", "=" + number(half)) == ["ok", struct.pack("<H", step).hex()]
        brain = struct.unpack("<f", struct.pack("<I", step << 16))[0]
        if brain == brain:
            assert probe("pack", "bf16", "=" + number(brain)) == ["ok", struct.pack("<H", step).hex()]


@settings(max_examples=600, deadline=None)
@given(FLOATS | st.integers(-20, 20).map(lambda e: 10.0**e) | st.integers(-(10**18), 10**18).map(float))
@example(0.0)
@example(-0.0)
@example(1e16)
@example(123456789012345680.0)
@example(0.0001)
@example(0.00001)
def test_floats_in_messages(probe: Probe, value: float) -> None:
    """As Python writes them."""
    assert probe("repr", value.hex() if value == value else "nan") == ["ok", repr(value)]
