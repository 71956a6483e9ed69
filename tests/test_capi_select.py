"""The C API chooses what ``aot.loader.select`` chooses, and rejects the others for the same reasons."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pointer, scalar, variant
from capi import Probe, number
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.loader.arguments import OPTIONS
from aot.loader.select import PointerValue, Request, select_kernel
from aot.manifest import ConstexprArg, DTypeConst, Kernel, PointerArg, ScalarArg
from aot.reader import BundleReader

DIST = Path(__file__).parent.parent / "dist" / "reductions"


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    with Probe() as running:
        yield running


def wanted(request: Request, reader: BundleReader) -> list[tuple[str, str, int, str]]:
    """Every decision: where its table or entry is, how many variants it stands for, and the reason."""
    kernel = reader.kernels[request.kernel]
    places = {
        id(entry): (table.offset, index)
        for table in kernel.tables
        for index, entry in enumerate(reader.table(table))
    }
    variants = {id(e.variant): places[id(e)] for t in kernel.tables for e in reader.table(t)}
    found = []
    for decision in select_kernel(request, kernel, reader.table).decisions:
        group = f"{decision.target}|{','.join(decision.types)}"
        if decision.variant is None:
            offset = next(
                t.offset for t in kernel.tables if (t.target, t.types) == (decision.target, decision.types)
            )
            place = f"{offset}|-1"
        else:
            place = "{}|{}".format(*variants[id(decision.variant)])
        reason = decision.fault.reason if decision.fault else ""
        found.append((group, place, decision.count, reason))
    return found


def asked(probe: Probe, request: Request) -> list[tuple[str, str, int, str]]:
    """The same from C."""
    words = []
    for name, value in request.args.items():
        if isinstance(value, PointerValue):
            address = {True: "4096", False: "4100", None: "?"}[value.aligned]
            words.append(f"{name}=p:{value.dtype or '?'}:{address}")
        else:
            words.append(f"{name}={number(value)}")
    for name, const in request.constexprs.items():
        words.append(f"{name}={f'd:{const.dtype}' if isinstance(const, DTypeConst) else number(const)}")
    keywords = {field: keyword for keyword, field in OPTIONS.items()}
    words += [f"{keywords[name]}={number(value)}" for name, value in request.options.items()]
    answer = probe("select", request.kernel, request.capability, request.max_shared, *words)
    assert answer[0] == "ok", answer
    found = []
    for line in answer[1:]:
        target, types, count, offset, index, reason = line.split("|", 5)
        found.append((f"{target}|{types}", f"{offset}|{index}", int(count), reason))
    return found


TYPES = ["i1", "i8", "i32", "i64", "u8", "u64", "fp16", "bf16", "fp32", "fp64"]
GIVEN = [1, 1.0, True, False, 0, None, "sum", "prod", "it's", 2**64 - 1, -1, 1e-6, DTypeConst("int8")]
# A bundle may hold an integer that no argument of C can be.
CONSTS = st.sampled_from([*GIVEN, 2**64, -(2**63) - 1])
BOUNDS = [
    "n",
    "n * m",
    "cdiv(n, m)",
    "max(n, 8192 // max(m, 1))",
    "n - m + 7",
    "-(n // m)",
    "next_power_of_2(n)",
]
VALUES = st.one_of(
    st.sampled_from([0, 1, 2, 15, 16, 17, 32, 1000, 1024, 4097, 2**31 - 1, 2**31, 2**63, 2**64 - 1, -16, -1]),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.sampled_from([0.0, 1.0, 16.0, -32.0, 0.5, 1e5, 65519.0, 65520.0, 1e39, float("inf")]),
)
POINTERS = st.builds(
    lambda dtype, aligned: PointerValue(dtype=dtype, aligned=aligned),
    st.sampled_from(["float32", "float16", "int8", None]),
    st.sampled_from([True, False, None]),
)
VARIANTS = st.builds(
    lambda x, y, n, m, op, block, target, bounds, options: variant(
        pointer("x", *x),
        pointer("y", *y),
        scalar("n", *n),
        scalar("m", *m),
        constexpr("OP", op),
        constexpr("BLOCK", block),
        target=target,
        bounds=bounds,
        **options,
    ),
    st.tuples(st.sampled_from(["float32", "float16"]), st.sampled_from([1, 16])),
    st.tuples(st.sampled_from(["float32", "int8"]), st.sampled_from([1, 16])),
    st.tuples(st.sampled_from(TYPES), st.sampled_from(["any", "any", "1", "16"])),
    st.tuples(st.sampled_from(TYPES), st.sampled_from(["any", "any", "1", "16"])),
    CONSTS,
    CONSTS,
    st.sampled_from(["sm_80", "sm_86", "sm_90", "sm_90a", "sm_100"]),
    st.lists(st.tuples(st.sampled_from(BOUNDS), st.sampled_from([16, 1024, -5, 2**40])), max_size=2),
    st.fixed_dictionaries(
        {},
        optional={"num_warps": st.sampled_from([1, 8]), "maxnreg": st.just(64), "fp_fusion": st.just(True)},
    ),
)
REQUESTS = st.builds(
    lambda args, constexprs, options, capability, shared: Request(
        kernel="k",
        args=args,
        constexprs=constexprs,
        options=options,
        capability=capability,
        max_shared=shared,
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "x": POINTERS | POINTERS | VALUES,
            "y": POINTERS,
            "n": VALUES | VALUES | VALUES | POINTERS,
            "m": VALUES,
        },
    ),
    st.fixed_dictionaries({}, optional={"OP": st.sampled_from(GIVEN), "BLOCK": st.sampled_from(GIVEN)}),
    st.fixed_dictionaries(
        {},
        optional={
            "num_warps": st.sampled_from([4, 8]),
            "num_stages": st.just(3),
            "num_ctas": st.sampled_from([1, True, None]),
            "maxnreg": st.sampled_from([None, 64, 2**40]),
            "fp_fusion": st.sampled_from([True, False, 0, 1]),
        },
    ),
    st.sampled_from([75, 80, 86, 89, 90, 100, 120]),
    st.sampled_from([0, 65536, 232448]),
)


@settings(max_examples=250, deadline=None)
@given(
    st.lists(VARIANTS, min_size=1, max_size=12),
    st.lists(st.integers(0, 300_000), min_size=12, max_size=12),
    st.lists(REQUESTS, min_size=1, max_size=12),
)
def test_the_same_variant_or_the_same_reasons(
    probe: Probe, variants: list[Any], shared: list[int], requests: list[Request]
) -> None:
    """Over random tables and requests: every decision, in order, word for word."""

    def edit(entries: list[Any]) -> None:
        for entry, size in zip(entries, shared, strict=False):
            entry["binary"]["shared"] = size

    with tempfile.TemporaryDirectory() as folder:
        path = make_bundle(Path(folder) / "b", Draft(variants=variants), edit_entries=edit)
        assert probe("open", path) == ["ok"]
        with BundleReader(path) as reader:
            for request in requests:
                assert asked(probe, request) == wanted(request, reader)


def _request_of(kernel: Kernel, data: st.DataObject, entries: list[Any]) -> Request:
    """A request near an entry of the kernel: its own values, some of them changed."""
    entry = data.draw(st.sampled_from(entries))
    args: dict[str, Any] = {}
    constexprs: dict[str, Any] = {}
    sizes = st.sampled_from([0, 1, 3, 16, 17, 128, 129, 1000, 1024, 1025, 8192, 2**23, 2**31, 2**40])
    for arg in entry.variant.args:
        if isinstance(arg, PointerArg):
            args[arg.name] = PointerValue(dtype=arg.dtype, aligned=data.draw(st.booleans()))
        elif isinstance(arg, ScalarArg):
            args[arg.name] = data.draw(sizes)
        elif isinstance(arg, ConstexprArg) and data.draw(st.booleans()):
            constexprs[arg.name] = arg.value
    return Request(
        kernel=kernel.name,
        args=args,
        constexprs=constexprs,
        options={},
        capability=data.draw(st.sampled_from([90, 90, 90, 80])),
        max_shared=232448,
    )


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_shipped_kernels(probe: Probe, data: st.DataObject) -> None:
    """The same over the reductions."""
    if not DIST.exists():
        pytest.skip("no dist/reductions here; make bundle builds it")
    reader, entries = _shipped(probe)
    name = data.draw(st.sampled_from(sorted(entries)))
    request = _request_of(reader.kernels[name], data, entries[name])
    assert asked(probe, request) == wanted(request, reader)


_opened: dict[int, tuple[BundleReader, Mapping[str, list[Any]]]] = {}


def _shipped(probe: Probe) -> tuple[BundleReader, Mapping[str, list[Any]]]:
    """The shipped bundle, read once; the probe opens it again, as other tests let it open others."""
    if not _opened:
        reader = BundleReader(DIST)
        entries = {n: [e for t in k.tables for e in reader.table(t)] for n, k in reader.kernels.items()}
        _opened[0] = (reader, entries)
    assert probe("open", DIST) == ["ok"]
    return _opened[0]
