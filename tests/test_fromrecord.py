"""Recorded misses to spec changes: what is added, what is kept, what is refused. Nothing is compiled here."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
import recordkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordkit import close_loop, request

import aot
from aot.build.fromrecord import revise
from aot.build.plan import make_plan
from aot.build.specfile import load_specs
from aot.loader import record
from aot.loader.select import Request
from aot.manifest import DTypeConst, Variant, encode
from aot.recordfile import read_records


def changes(folder: Path, new: dict[str, str]) -> list[str]:
    """The lines that were taken out (-) and put in (+)."""
    return [
        line[0] + line[2:]
        for file, old in recordkit.texts(folder).items()
        for line in difflib.ndiff(old.splitlines(), new[file].splitlines())
        if line[0] in "+-"
    ]


NORM = ("float16", "float16", 1024, 100, 1000, 1e-5)


ADDED = {
    "a new dtype": (
        request("norm", "bfloat16", "bfloat16", 1024, 100, 1000, 1e-5),
        ["+  - bfloat16"],
    ),
    "one dtype in, another out": (
        request("norm", "float16", "float32", 1024, 100, 1000, 1e-5),
        [
            "+  out_ptr_dtype: [$dtype, float32]",
            "-  out_ptr: {pointer: $dtype, align: [16]}",
            "+  out_ptr: {pointer: $out_ptr_dtype, align: [16]}",
        ],
    ),
    "an address that is not aligned": (
        request("norm", "float16", "float16:1", 1024, 100, 1000, 1e-5),
        [
            "-  out_ptr: {pointer: $dtype, align: [16]}",
            "+  out_ptr: {pointer: $dtype, align: [16, 1]}",
        ],
    ),
    "two claims that do not hold, which do not multiply": (
        request("norm", "float16:1", "float16", 1023, 100, 1000, 1e-5),
        [
            "+  claims: [strict, none]",
            "-  x_ptr:   {pointer: $dtype, align: 16}",
            "+  x_ptr:   {pointer: $dtype, align: {by: claims, strict: 16, none: 1}}",
            "-  stride:  {int: int64, specialize: 16}",
            "+  stride:  {int: int64, specialize: {by: claims, strict: 16, none: any}}",
        ],
    ),
    "beyond the last bucket: a block as wide as its bucket goes on so, warps as before": (
        request("norm", "float16", "float16", 1024, 100, 5000, 1e-5),
        [
            "-  n_cols: {buckets: [1024, 4096]}",
            "+  n_cols: {buckets: [1024, 4096, 8192]}",
            "-  BLOCK:   {constexpr: {by: n_cols, 1024: 1024, 4096: 4096}}",
            "+  BLOCK:   {constexpr: {by: n_cols, 1024: 1024, 4096: 4096, 8192: 8192}}",
            "-launch: {grid: [n_rows], num_warps: {by: n_cols, 1024: 4, 4096: 8}}",
            "+launch: {grid: [n_rows], num_warps: {by: n_cols, 1024: 4, 4096: 8, 8192: 8}}",
        ],
    ),
    "a block that the caller insists on": (
        request("norm", *NORM, BLOCK=2048),
        [
            "+include:",
            "+- {dtype: float16, n_cols: 2048, why: recorded calls}",
            "-  BLOCK:   {constexpr: {by: n_cols, 1024: 1024, 4096: 4096}}",
            "+  BLOCK:   {constexpr: {by: n_cols, 1024: 1024, 4096: 4096, 2048: 2048}}",
            "-launch: {grid: [n_rows], num_warps: {by: n_cols, 1024: 4, 4096: 8}}",
            "+launch: {grid: [n_rows], num_warps: {by: n_cols, 1024: 4, 4096: 8, 2048: 4}}",
        ],
    ),
    "a string that no variant has": (
        request("norm", *NORM, MODE="safe"),
        [
            "+  MODE: [fast, safe]",
            "-  MODE:    {constexpr: {text: fast}}",
            "+  MODE:    {constexpr: $MODE}",
        ],
    ),
    "null, which is no value of an axis": (
        request("norm", *NORM, MODE=None),
        [
            "+  MODE: [spec, none]",
            "-  MODE:    {constexpr: {text: fast}}",
            "+  MODE:    {constexpr: {by: MODE, spec: {text: fast}, none: null}}",
        ],
    ),
    "more than 2**31 rows": (
        request("norm", "float16", "float16", 1024, 2**31, 1000, 1e-5),
        [
            "+  n_rows_type: [int32, int64]",
            "-  n_rows:  {int: int32}",
            "+  n_rows:  {int: $n_rows_type}",
        ],
    ),
    "an option": (
        request("sort", "float16", 9, OP="sum", num_warps=8, capability=80),
        [
            "+  - {n: {buckets: [64]}, num_warps: [4]}",
            "-  - {n: {buckets: [64]}}",
            "+  - {wide: true, num_warps: [4]}",
            "-  - {wide: true}",
            "+  launch: {num_warps: $num_warps}",
            "+  include:",
            "+  - {op: sum, dtype: float16, acc: float32, n: 64, num_warps: 8, why: recorded calls}",
        ],
    ),
    "another GPU": (
        request("norm", *NORM, capability=100),
        ["-targets: [sm_90a]", "+targets: [sm_90a, sm_100a]"],
    ),
    "an op of axes that another kernel shares": (
        request("fold", "float16", "float16", 8, OP="max", capability=80),
        ["+  include:", "+  - {op: max, dtype: float16, acc: float32, why: recorded calls}"],
    ),
    "a row whose values the call says": (
        request("fold", "int8", "int8", 8, ACC=DTypeConst("int32"), capability=80),
        [
            "-  io: {zip: [dtype, acc], rows: [[float16, float32], [float32, float64]]}",
            "+  io: {zip: [dtype, acc], rows: [[float16, float32], [float32, float64], [int8, int32]]}",
        ],
    ),
}


@pytest.mark.parametrize("case", ADDED)
def test_what_is_added(tmp_path: Path, case: str) -> None:
    """Each change is one that a person could have made, and after it the call hits."""
    asked, lines = ADDED[case]
    folder = recordkit.specs(tmp_path / "k")
    revision, new, left = close_loop(folder, [asked], tmp_path)
    assert revision.problems == ()
    assert sorted(changes(folder, new)) == sorted(lines)
    assert left == []


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (
            request("norm", "float16", "float16", 1024, 100.5, 1000, 1e-5),
            "kernel 'norm': 1 call norm(x_ptr: float16, out_ptr: float16, stride = 1024, n_rows: float, "
            "n_cols = 1000, eps: float) on 9.0: n_rows is int32, the call has a float",
        ),
        (
            request("fold", "int8", "int8", 8, capability=80),
            "kernel 'fold': 1 call fold(x_ptr: int8, out_ptr: int8, n = 8) on 8.0: the rows of dtype, acc "
            "need one more, and the call does not say its acc; write the row by hand",
        ),
        (
            request("norm", *NORM, MODE=float("inf")),
            "kernel 'norm': 1 call norm(x_ptr: float16, out_ptr: float16, stride = 1024, n_rows = 100, "
            "n_cols = 1000, eps: float, MODE = inf) on 9.0: MODE is 'fast', the call has inf",
        ),
        (
            request("norm", *NORM, fp_fusion=False),
            "kernel 'norm': 1 call norm(x_ptr: float16, out_ptr: float16, stride = 1024, n_rows = 100, "
            "n_cols = 1000, eps: float, fp_fusion = False) on 9.0: fp_fusion is True, the call has False",
        ),
        (
            request("norm", *NORM, capability=999),
            "kernel 'norm': 1 call norm(x_ptr: float16, out_ptr: float16, stride = 1024, n_rows = 100, "
            "n_cols = 1000, eps: float) on 99.9: this version knows no target for capability 99.9",
        ),
    ],
)
def test_what_no_spec_can_say(tmp_path: Path, asked: Request, problem: str) -> None:
    """One sentence a kind of call, and the spec is as it was."""
    folder = recordkit.specs(tmp_path / "k")
    fine = request("norm", "float32", "float32", 1024, 100, 9000, 1e-5)
    revision, new, left = close_loop(folder, [asked, fine], tmp_path)
    assert revision.problems == (problem,)
    assert left == [asked]
    alone, same, _ = close_loop(folder, [asked], tmp_path)
    assert (alone.added, same) == (0, recordkit.texts(folder))
    assert new != same


def test_exact_adds_no_more_than_was_seen(tmp_path: Path) -> None:
    """One combination, its bucket as wide as the widest call."""
    folder = recordkit.specs(tmp_path / "k")
    asked = [request("norm", "bfloat16", "bfloat16", 1024, 100, n, 1e-5) for n in (5000, 5001)]
    revision, new, left = close_loop(folder, asked, tmp_path, exact=True)
    assert left == []
    assert revision.problems == ()
    assert "- {dtype: bfloat16, n_cols: 5001, why: recorded calls}" in changes(folder, new)[-1]
    (change,) = revision.files
    assert (change.before, change.after) == (4, 5)


def test_running_again_changes_nothing_and_more_records_merge(tmp_path: Path) -> None:
    folder = recordkit.specs(tmp_path / "k")
    first = [request("norm", *NORM, MODE="safe"), request("norm", "float32:1", "float32", 7, 100, 1000, 1e-5)]
    _, once, _ = close_loop(folder, first, tmp_path)
    for file, text in once.items():
        Path(file).write_text(text)
    revision, twice, _ = close_loop(folder, first, tmp_path)
    assert (twice, revision.added) == (once, 0)
    second = [
        request("norm", *NORM, MODE="slow"),
        request("norm", "float16", "float16:1", 7, 100, 1000, 1e-5),
    ]
    _, thrice, left = close_loop(folder, [*first, *second], tmp_path)
    assert left == []
    # What is there already is used again: no second axis for the same parameter.
    assert "MODE_" not in str(thrice)
    assert "claims_" not in str(thrice)


def test_a_kernel_that_no_spec_has(tmp_path: Path) -> None:
    folder = recordkit.specs(tmp_path / "k")
    old = recordkit.texts(folder)
    file = tmp_path / "calls.jsonl"
    recordkit.missed(recordkit.planned(old, tmp_path), [request("norm", *NORM, MODE="safe")], file)
    fold = str(folder / "fold.yaml")
    revision = revise([fold], {fold: old[fold]}, read_records(file).records)
    assert revision.files == ()
    assert revision.problems == (
        f"kernel 'norm': found it in the record and in no spec of {fold}; "
        "give the spec that its bundle was built from; did you mean 'sort'?",
    )


def test_want_of_shared_memory_is_said(tmp_path: Path) -> None:
    """The spec has the variant already: adding another would not help."""
    folder = recordkit.specs(tmp_path / "k")
    old = recordkit.texts(folder)
    bundle = recordkit.planned(old, tmp_path, shared=300_000)
    asked = request("norm", *NORM)
    with record.record(tmp_path / "calls.jsonl"):
        record.note_miss(bundle.reader, bundle.kernel("norm").info, asked)
    revision = revise(list(old), old, read_records(tmp_path / "calls.jsonl").records)
    assert revision.problems == (
        "kernel 'norm': 1 call norm(x_ptr: float16, out_ptr: float16, stride = 1024, n_rows = 100, "
        "n_cols = 1000, eps: float) on 9.0: a variant fits it but needs 300000 bytes of shared memory, the "
        "device allows 200000; lower num_stages or the block's size in the spec, then record again",
    )


DTYPES = st.sampled_from(["float16", "float32", "bfloat16", "int8", "complex64"])
ADDRESSES = st.builds(lambda dtype, aligned: dtype + ("" if aligned else ":1"), DTYPES, st.booleans())
INTS = st.one_of(st.integers(-3, 40), st.sampled_from([1000, 1024, 4097, 2**31, 2**40]))
NUMBERS = st.one_of(INTS, st.booleans(), st.floats(allow_nan=False))
CONSTS = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["fast", "no", "a b", "$x"]))
OPTIONS = st.fixed_dictionaries(
    {}, optional={"num_warps": st.sampled_from([1, 4, 8]), "num_stages": st.just(2)}
)


@st.composite
def calls(draw: st.DrawFn) -> Request:
    kernel = draw(st.sampled_from(["norm", "fold", "sort"]))
    given_: dict[str, Any] = dict(draw(OPTIONS))
    if kernel == "norm":
        values = [draw(ADDRESSES), draw(ADDRESSES), *(draw(NUMBERS) for _ in range(4))]
        given_ |= draw(
            st.fixed_dictionaries({}, optional={"BLOCK": st.sampled_from([512, 1024, 8192]), "MODE": CONSTS})
        )
    elif kernel == "fold":
        values = [draw(ADDRESSES), draw(ADDRESSES), draw(NUMBERS)]
        given_ |= draw(st.fixed_dictionaries({}, optional={"OP": CONSTS, "KEEP": CONSTS}))
        given_ |= draw(
            st.fixed_dictionaries(
                {}, optional={"ACC": st.sampled_from([DTypeConst("int32"), DTypeConst("float32")])}
            )
        )
    else:
        values = [draw(ADDRESSES), draw(NUMBERS)]
        given_["OP"] = draw(st.sampled_from(["sum", "max"]))
    capability = draw(st.sampled_from([80, 90, 120]))
    return request(kernel, *values, capability=capability, **given_)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=st.lists(calls(), min_size=1, max_size=4), exact=st.booleans())
def test_every_miss_becomes_a_hit_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, asked: list[Request], exact: bool
) -> None:
    """Whatever the specs built before they build after, and a call that was served is served by the same."""
    tmp_path = tmp_path_factory.mktemp("loop")
    folder = recordkit.specs(tmp_path / "k")
    revision, new, left = close_loop(folder, asked, tmp_path, exact=exact)
    assert len(left) == 0 or revision.problems, new
    refused = sum(int(p.split(": ")[1].split()[0]) for p in revision.problems)
    assert len(left) <= refused, (left, revision.problems)
    before, after = built(recordkit.texts(folder)), built(new)
    assert before <= after
    old, changed = (recordkit.planned(x, tmp_path) for x in (recordkit.texts(folder), new))
    for call in SERVED:
        assert chosen(changed, call) == chosen(old, call)
    again, same, _ = close_loop_texts(folder, new, asked, tmp_path, exact)
    assert same == new
    assert again == 0


SERVED = [
    *(
        request("norm", dtype, dtype, 1024, 100, n, 1.0, **more)
        for dtype in ("float16", "float32")
        for n in (3, 1000, 1024, 4096)
        for more in ({}, {"BLOCK": 4096})
    ),
    *(request("fold", "float16", "float16", 5, capability=80, **more) for more in ({}, {"OP": "prod"})),
    *(request("sort", "float32", n, OP="sum", capability=80) for n in (5, 64, 65)),
]


def chosen(bundle: aot.Bundle, call: Request) -> bytes:
    """The variant that serves a call, without the names of axes."""
    entry = bundle.kernel(call.kernel).select(call).entry
    assert entry is not None
    return _key(entry.variant)


def close_loop_texts(
    folder: Path, new: dict[str, str], asked: list[Request], where: Path, exact: bool
) -> tuple[int, dict[str, str], None]:
    """Run again on the changed texts, on disk."""
    for file, text in new.items():
        Path(file).write_text(text)
    revision, same, _ = close_loop(folder, asked, where, exact=exact)
    return revision.added, same, None


def built(texts: dict[str, str]) -> set[bytes]:
    """What is compiled, without the names of axes."""
    plan = make_plan(load_specs(list(texts), texts))
    return {_key(v.variant) for v in plan.variants}


def _key(variant: Variant) -> bytes:
    return encode([variant.kernel, variant.target, variant.args, variant.bounds, variant.options])
