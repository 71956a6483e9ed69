"""Selection: the first variant that nothing speaks against, and a sentence for each that something does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from bundlemaker import constexpr, pointer, scalar, variant
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.errors import BundleError
from aot.loader.select import PointerValue, Request, Selection, choose, reject_reason, select, select_kernel
from aot.manifest import (
    Binary,
    CubinRef,
    DTypeConst,
    Entry,
    Kernel,
    ParamInfo,
    PointerArg,
    ScalarArg,
    TableRef,
    Variant,
)

CUBIN = CubinRef(sha256="0" * 64, offset=16, size=1, raw_size=1, codec="none")


def entry(*args: Any, shared: int = 0, **fields: Any) -> Entry:
    """An entry of a variant."""
    binary = Binary(
        symbol="k",
        cubin=CUBIN,
        params=(),
        hidden=0,
        shared=shared,
        registers=32,
        local=0,
        scratch=(0, 1),
    )
    return Entry(variant=variant(*args, **fields), binary=binary)


def request(
    args: Mapping[str, Any] | None = None,
    constexprs: Mapping[str, Any] | None = None,
    capability: int = 90,
    max_shared: int = 232448,
    **options: Any,
) -> Request:
    """A request; a pair (dtype, aligned) is a tensor."""
    return Request(
        kernel="k",
        args={
            name: PointerValue(dtype=value[0], aligned=value[1]) if isinstance(value, tuple) else value
            for name, value in (args or {}).items()
        },
        constexprs=constexprs or {},
        options=options,
        capability=capability,
        max_shared=max_shared,
    )


REASONS: list[tuple[Entry, Request, str | None]] = [
    # pointers
    (entry(pointer("x")), request({"x": ("float32", True)}), None),
    (entry(pointer("x")), request({"x": ("float16", True)}), "x is float32, the call has float16"),
    (entry(pointer("x")), request({"x": ("float32", False)}), "x is not aligned to 16 bytes"),
    (entry(pointer("x", align=1)), request({"x": ("float32", False)}), None),
    (entry(pointer("x")), request({"x": 5}), "x is a tensor, the call has 5"),
    # scalars
    (entry(scalar("n", claim="16")), request({"n": 1000}), "n = 1000 is not a multiple of 16"),
    (entry(scalar("n", claim="16")), request({"n": 0}), None),
    (entry(scalar("n", claim="16")), request({"n": -32}), None),
    (entry(scalar("n", claim="1")), request({"n": 2}), "n = 2 is not 1"),
    (entry(scalar("n", claim="1")), request({"n": True}), None),
    (entry(scalar("n")), request({"n": 2**31 - 1}), None),
    (entry(scalar("n")), request({"n": 2**31}), "n = 2147483648 does not fit int32"),
    (entry(scalar("n")), request({"n": 2**31 + 1}), "n = 2147483649 does not fit int32"),
    (entry(scalar("n", "i64")), request({"n": 2**31}), None),
    (entry(scalar("n", "u8")), request({"n": -1}), "n = -1 does not fit uint8"),
    (entry(scalar("n")), request({"n": 1.0}), "n = 1.0 is a float, n is int32"),
    (entry(scalar("n")), request({"n": ("int32", True)}), "n is a number, the call has a tensor"),
    (entry(scalar("eps", "fp32")), request({"eps": 1}), None),
    (entry(scalar("eps", "fp16")), request({"eps": 7e4}), "eps = 70000.0 does not fit float16"),
    # constexprs
    (entry(constexpr("OP", "sum")), request({}, {"OP": "sum"}), None),
    (entry(constexpr("OP", "sum")), request({}, {"OP": "prod"}), "OP is 'sum', the call has 'prod'"),
    (entry(constexpr("OP", "sum")), request({}, {}), None),
    (entry(constexpr("B", 1)), request({}, {"B": 1.0}), "B is 1, the call has 1.0"),
    (entry(constexpr("B", 1)), request({}, {"B": True}), "B is 1, the call has True"),
    (entry(constexpr("B", 1.0)), request({}, {"B": 1}), "B is 1.0, the call has 1"),
    (entry(constexpr("B", None)), request({}, {"B": None}), None),
    (
        entry(constexpr("T", DTypeConst("float16"))),
        request({}, {"T": DTypeConst("float32")}),
        "T is float16, the call has float32",
    ),
    (entry(constexpr("T", DTypeConst("float16"))), request({}, {"T": DTypeConst("float16")}), None),
    # buckets
    (entry(scalar("n"), bounds=[("n", 4096)]), request({"n": 4096}), None),
    (
        entry(scalar("n"), bounds=[("n", 4096)]),
        request({"n": 5000}),
        "n = 5000 is over the bucket's bound 4096",
    ),
    (
        entry(scalar("n"), scalar("m"), bounds=[("n * m", 100)]),
        request({"n": 20, "m": 6}),
        "n * m = 120 is over the bucket's bound 100",
    ),
    (entry(scalar("n"), scalar("m"), bounds=[("n * m", 100)]), request({"n": 200}), None),
    (
        entry(scalar("n"), scalar("m"), bounds=[("cdiv(n, m)", 4)]),
        request({"n": 8, "m": 0}),
        "the bucket's extent has no value: 'cdiv(n, m)' divides by zero",
    ),
    # options
    (entry(), request(num_warps=4, num_stages=3, num_ctas=1, maxnreg=None, fp_fusion=False), None),
    (entry(), request(num_warps=8), "num_warps is 4, the call has 8"),
    (entry(), request(maxnreg=128), "maxnreg is None, the call has 128"),
    (entry(), request(fp_fusion=True), "fp_fusion is False, the call has True"),
    # the device
    (entry(target="sm_80"), request(), "sm_80 runs on capability 8.x only, the device is 9.0"),
    (entry(target="sm_89"), request(capability=86), "sm_89 needs capability 8.9 or newer, the device is 8.6"),
    (entry(target="sm_80"), request(capability=86), None),
    (entry(target="sm_90a"), request(), None),
    (
        entry(target="sm_90a"),
        request(capability=100),
        "sm_90a runs on capability 9.0 only, the device is 10.0",
    ),
    (
        entry(shared=233472),
        request(),
        "it needs 233472 bytes of shared memory, the device allows 232448",
    ),
    # nothing known, nothing rejected
    (entry(pointer("x"), scalar("n", claim="16"), constexpr("B", 1), bounds=[("n", 1)]), request(), None),
    (entry(pointer("x")), request({"x": (None, None)}), None),
]


@pytest.mark.parametrize(("found", "wanted", "reason"), REASONS)
def test_reasons(found: Entry, wanted: Request, reason: str | None) -> None:
    """Field cases B03, B05, B06, B10 and B15: each constraint is looked at for each call."""
    assert reject_reason(found, wanted) == reason


def test_a_broken_expression_is_the_bundles_fault() -> None:
    with pytest.raises(BundleError, match=r"^found expression 'n \+' in the bundle: .*; build it again$"):
        reject_reason(entry(scalar("n"), bounds=[("n +", 1)]), request({"n": 1}))


def reasons(selection: Selection) -> list[str | None]:
    """The reason of every decision."""
    return [None if d.fault is None else d.fault.reason for d in selection.decisions]


def test_order_of_the_table() -> None:
    fast, general = entry(pointer("x")), entry(pointer("x", align=1))
    chosen = select(request({"x": ("float32", True)}), [fast, general])
    assert chosen.entry is fast
    assert reasons(chosen) == [None]
    chosen = select(request({"x": ("float32", False)}), [fast, general])
    assert chosen.entry is general
    assert reasons(chosen) == ["x is not aligned to 16 bytes", None]
    assert chosen.decisions[0].variant is fast.variant


@pytest.mark.parametrize(
    ("strides", "chosen"),
    [((64, 1), "row"), ((1, 64), "column"), ((1, 1), "row"), ((64, 2), "any"), ((2, 64), "any")],
)
def test_the_stride_that_is_one_decides(strides: tuple[int, int], chosen: str) -> None:
    """Field case B04: the variant of stride(1) == 1 never takes a transposed tensor; each finds one."""
    entries = [
        entry(scalar("s0", "i64", claim=first), scalar("s1", "i64", claim=second), axes={"layout": layout})
        for first, second, layout in (("any", "1", "row"), ("1", "any", "column"), ("any", "any", "any"))
    ]
    found = select(request(dict(zip(("s0", "s1"), strides, strict=True))), entries)
    assert found.entry is not None
    assert found.entry.variant.axes == {"layout": chosen}


def test_a_miss_has_every_reason() -> None:
    chosen = select(request({"n": 17}), [entry(scalar("n", claim="1")), entry(scalar("n", claim="16"))])
    assert chosen.entry is None
    assert reasons(chosen) == ["n = 17 is not 1", "n = 17 is not a multiple of 16"]


@pytest.mark.parametrize(
    ("capability", "target"),
    [(90, "sm_90a"), (86, "sm_86"), (89, "sm_86"), (80, "sm_80"), (100, None), (120, None), (75, None)],
)
def test_the_best_target_that_the_device_runs(capability: int, target: str | None) -> None:
    """Field case B10: an ``a`` target serves exactly its capability and is the best there."""
    entries = [entry(target=t) for t in ("sm_80", "sm_90", "sm_86", "sm_90a")]
    chosen = select(request(capability=capability), entries).entry
    assert (chosen and chosen.variant.target) == target


def test_a_lesser_target_serves_what_the_best_does_not() -> None:
    entries = [entry(scalar("n"), target="sm_90"), entry(scalar("n", claim="16"), target="sm_90a")]
    chosen = select(request({"n": 5}), entries)
    assert chosen.entry is entries[0]
    assert [d.target for d in chosen.decisions] == ["sm_90a", "sm_90"]


def kernel(*tables: tuple[str, tuple[str, ...], int]) -> Kernel:
    """A kernel k(x, y) with these tables."""
    return Kernel(
        name="k",
        params=(ParamInfo(name="x", kind="pointer"), ParamInfo(name="y", kind="pointer")),
        grid=None,
        source="k.py:k",
        source_sha256="0" * 64,
        tables=tuple(
            TableRef(target=t, types=d, count=n, offset=0, size=0, raw_size=0, sha256="0" * 64)
            for t, d, n in tables
        ),
    )


def test_only_tables_that_fit_are_read() -> None:
    read: list[TableRef] = []

    def reader(ref: TableRef) -> tuple[Entry, ...]:
        read.append(ref)
        return (entry(pointer("x", "float32"), pointer("y", "float16"), target=ref.target),)

    made = kernel(
        ("sm_80", ("float32", "float16"), 7),
        ("sm_90", ("float32", "float32"), 5),
        ("sm_90", ("float32", "float16"), 1),
    )
    chosen = select_kernel(request({"x": ("float32", True), "y": ("float16", True)}), made, reader)
    assert chosen.entry is not None
    assert read == [made.tables[2]]
    assert [(d.count, d.fault and d.fault.reason) for d in chosen.decisions] == [
        (5, "y is float32, the call has float16"),
        (1, None),
    ]
    missed = select_kernel(request({"x": ("int8", True)}), made, reader)
    assert [(d.count, d.fault and d.fault.reason) for d in missed.decisions] == [
        (5, "x is float32, the call has int8"),
        (1, "x is float32, the call has int8"),
        (7, "sm_80 runs on capability 8.x only, the device is 9.0"),
    ]


DTYPES = st.sampled_from(["float32", "float16", "int8"])
TABLES = st.lists(
    st.tuples(
        st.sampled_from(["sm_80", "sm_90", "sm_90a", "sm_100"]),
        st.tuples(DTYPES, DTYPES),
        st.sampled_from([1, 16]),
    ),
    max_size=6,
)
POINTERS = st.none() | st.tuples(st.none() | DTYPES, st.booleans())


@settings(max_examples=300, deadline=None)
@given(TABLES, POINTERS, POINTERS)
def test_a_call_is_given_what_the_selection_with_reasons_is(
    tables: list[tuple[str, tuple[str, str], int]], x: Any, y: Any
) -> None:
    """Dtypes that are not known among them, and pointers that are not given."""
    made = kernel(*((target, types, 1) for target, types, _ in tables))
    held = {
        id(ref): (entry(pointer("x", types[0], align), pointer("y", types[1]), target=target),)
        for ref, (target, types, align) in zip(made.tables, tables, strict=True)
    }
    read: list[int] = []

    def reader(ref: TableRef) -> tuple[Entry, ...]:
        read.append(id(ref))
        return held[id(ref)]

    asked = request({name: value for name, value in (("x", x), ("y", y)) if value is not None})
    with_reasons = select_kernel(asked, made, reader).entry
    before, read[:] = list(read), []
    assert choose(asked, made, reader) is with_reasons
    assert read == before


# Whatever the table and the call, what is chosen is right.

VALUES = st.sampled_from([0, 1, 2, 15, 16, 17, 31, 32, 1000, 1024, 4096, 4097, 2**31 - 1, 2**31, -16, True])
CALLS = st.fixed_dictionaries(
    {}, optional={"x": st.tuples(st.just("float32"), st.booleans()), "n": VALUES, "m": VALUES}
)
VARIANTS = st.builds(
    lambda align, n, m, bound, op, target: entry(
        pointer("x", align=align),
        scalar("n", n[0], n[1]),
        scalar("m", "i64", m),
        constexpr("OP", op),
        target=target,
        bounds=[] if bound is None else [("n", bound)],
    ),
    st.sampled_from([1, 16]),
    st.tuples(st.sampled_from(["i32", "i64"]), st.sampled_from(["1", "16", "any"])),
    st.sampled_from(["1", "16", "any"]),
    st.sampled_from([None, 16, 1024, 4096]),
    st.sampled_from(["sum", "prod"]),
    st.sampled_from(["sm_80", "sm_90", "sm_90a"]),
)
GENERAL = entry(pointer("x", align=1), scalar("n", "i64"), scalar("m", "i64"), constexpr("OP", "sum"))


def holds(chosen: Variant, asked: Request) -> bool:
    """Do all claims of a variant hold for the request? Written apart from the code under test."""
    for arg in chosen.args:
        value = asked.args.get(arg.name)
        if value is None:
            continue
        if isinstance(arg, PointerArg):
            assert isinstance(value, PointerValue)
            if value.dtype != arg.dtype or (arg.align == 16 and not value.aligned):
                return False
        elif isinstance(arg, ScalarArg):
            assert isinstance(value, int)
            width = {"i32": 31, "i64": 63}[arg.type]
            claim = {"1": value == 1, "16": value % 16 == 0, "any": True}[arg.claim]
            if not claim or not -(2**width) <= value < 2**width:
                return False
    extent = asked.args.get("n")
    over = isinstance(extent, int) and any(extent > bound.max for bound in chosen.bounds)
    ops = [a.value for a in chosen.args if a.name == "OP"]  # type: ignore[union-attr]
    wrong_op = "OP" in asked.constexprs and ops != [asked.constexprs["OP"]]
    return not over and not wrong_op and chosen.target in ("sm_90", "sm_90a")


@settings(max_examples=300, deadline=None)
@given(st.lists(VARIANTS, max_size=8), CALLS, st.sampled_from([{}, {"OP": "sum"}]))
def test_what_is_chosen_is_right(entries: list[Entry], args: dict[str, Any], consts: dict[str, Any]) -> None:
    """Field cases B03, B05 and C01: with a general variant last, every call finds one, and a right one."""
    asked = request(args, consts)
    chosen = select(asked, [*entries, GENERAL])
    assert chosen.entry is not None
    assert holds(chosen.entry.variant, asked)
    order = sorted([*entries, GENERAL], key=lambda e: {"sm_90a": 0, "sm_90": 1, "sm_80": 2}[e.variant.target])
    right = [e for e in order if holds(e.variant, asked)]
    assert chosen.entry is right[0]
    assert [d.fault is None for d in chosen.decisions] == [False] * (len(chosen.decisions) - 1) + [True]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 32, 1000, 1024])
def test_a_complete_spec_serves_every_size(n: int, aligned: bool) -> None:
    """Field case C01: 1, a multiple of 16 or neither, aligned or not: always a variant."""
    entries = [
        entry(pointer("x", align=align), scalar("n", "i32", claim))
        for align in (16, 1)
        for claim in ("1", "16", "any")
    ]
    chosen = select(request({"x": ("float32", aligned), "n": n}), entries).entry
    assert chosen is not None
    claim = "1" if n == 1 else "16" if n % 16 == 0 else "any"
    assert chosen.variant.args == (pointer("x", align=16 if aligned else 1), scalar("n", "i32", claim))
