"""The record file as it is read: what was written comes back, what is no record is named by its line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.dtypes import DTYPES
from aot.errors import UsageError
from aot.loader.packing import scalar_fault
from aot.manifest import DTypeConst, same_const
from aot.recordfile import (
    FLOAT_RANGES,
    BoolSeen,
    FloatSeen,
    IntSeen,
    PointerSeen,
    Record,
    claim_of,
    encode_record,
    extent_class,
    float_range,
    read_const,
    read_records,
    write_const,
)

NAMES = st.text("abcxyz_", min_size=1, max_size=4)
BIG = st.integers(-(2**70), 2**70)
CONSTS = st.one_of(
    st.none(),
    st.booleans(),
    BIG,
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(list(DTYPES)).map(DTypeConst),
)


@st.composite
def args(draw: st.DrawFn, name: str) -> PointerSeen | IntSeen | BoolSeen | FloatSeen:
    """One argument as a single call shows it."""
    if draw(st.booleans()):
        return PointerSeen(
            name=name, dtype=draw(st.sampled_from([None, *DTYPES])), align=draw(st.sampled_from([1, 16]))
        )
    value = draw(st.one_of(BIG, st.booleans(), st.floats()))
    if isinstance(value, float):
        return FloatSeen(name=name, fits=float_range(value))
    seen = BoolSeen if isinstance(value, bool) else IntSeen
    return seen(name=name, low=int(value), high=int(value), claim=claim_of(value))


@st.composite
def records(draw: st.DrawFn) -> Record:
    return Record(
        aot_record=1,
        by=draw(st.sampled_from(["bundle", "triton"])),
        event=draw(st.sampled_from(["miss", "call"])),
        count=draw(st.integers(1, 9)),
        kernel=draw(NAMES),
        capability=draw(st.sampled_from([80, 90])),
        max_shared=draw(st.integers(0, 2**20)),
        args=tuple(draw(args(name)) for name in draw(st.lists(NAMES, unique=True, max_size=3))),
        constexprs={n: write_const(draw(CONSTS)) for n in draw(st.lists(NAMES, max_size=2))},
        options=draw(
            st.dictionaries(st.sampled_from(["num_warps", "maxnreg"]), st.sampled_from([None, 1, 4]))
        ),
    )


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records(), max_size=6))
def test_what_was_written_comes_back(tmp_path_factory: pytest.TempPathFactory, written: list[Record]) -> None:
    """Every call is in one record: counts add up, and the values lie in the ranges of their kind."""
    file = tmp_path_factory.mktemp("r") / "calls.jsonl"
    file.write_bytes(b"".join(map(encode_record, written)))
    read = read_records(file)
    assert read.notes == ()
    assert sum(r.count for r in read.records) == sum(r.count for r in written)
    for one in written:
        assert any(_holds(record, one) for record in read.records)
    # Merging twice changes nothing: the file of the merged is the merged.
    file.write_bytes(b"".join(map(encode_record, read.records)))
    assert read_records(file).records == read.records


def _holds(record: Record, one: Record) -> bool:
    if (record.kernel, record.event, record.by, record.options) != (
        one.kernel,
        one.event,
        one.by,
        one.options,
    ):
        return False
    if {n: repr(v) for n, v in record.consts.items()} != {n: repr(v) for n, v in one.consts.items()}:
        return False
    for wide, narrow in zip(record.args, one.args, strict=False):
        if isinstance(wide, (IntSeen, BoolSeen)) and isinstance(narrow, (IntSeen, BoolSeen)):
            if not wide.low <= narrow.low <= narrow.high <= wide.high or wide.claim != narrow.claim:
                return False
        elif wide != narrow:
            return False
    return len(record.args) == len(one.args)


@given(CONSTS)
def test_constexprs(value: object) -> None:
    """JSON keeps every constexpr apart: 1, 1.0, True, "1", null, a dtype, infinities."""
    back = read_const(json_round(write_const(value)))  # type: ignore[arg-type]
    assert same_const(back, value) or (isinstance(value, float) and math.isnan(value) and math.isnan(back))  # type: ignore[arg-type]


def json_round(value: object) -> object:
    record = Record(
        aot_record=1,
        by="bundle",
        event="call",
        count=1,
        kernel="k",
        capability=90,
        max_shared=0,
        args=(),
        constexprs={"C": value},  # type: ignore[dict-item]
        options={},
    )
    import msgspec

    return msgspec.json.decode(encode_record(record), type=Record).constexprs["C"]


GOOD = {
    "aot_record": 1,
    "by": "bundle",
    "event": "miss",
    "count": 2,
    "kernel": "k",
    "capability": 90,
    "max_shared": 1000,
    "args": [{"kind": "int", "name": "n", "low": 5, "high": 7, "claim": "any"}],
    "constexprs": {},
    "options": {},
}


def line(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode() + b"\n"


WANTED = ", wanted a line that AOT_RECORD wrote"


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (
            b"garbage\n",
            "found no record (JSON is malformed: invalid character (byte 0))" + WANTED,
        ),
        (
            b"{}\n",
            "found no record (Object missing required field `aot_record`)" + WANTED,
        ),
        (
            b"\xff\xfe\n",
            "found no record (JSON is malformed: invalid character (byte 0))" + WANTED,
        ),
        (line(aot_record=2), "found a record of version 2, this version reads 1; upgrade aot-kernels"),
        (line(aot_record=0), "found a record of version 0, this version reads 1; record again"),
        (line(count=0), "found a damaged record (Expected `int` >= 1 - at `$.count`)"),
        (
            line(args=[{"kind": "none", "name": "n"}]),
            "found a damaged record (Invalid value 'none' - at `$.args[0].kind`)",
        ),
        (
            line(args=[{"kind": "pointer", "name": "x", "dtype": "int3", "align": 1}]),
            "found the dtype 'int3' for x, which this version does not know",
        ),
        (
            line(args=[{"kind": "int", "name": "n", "low": 9, "high": 7, "claim": "any"}]),
            "found a damaged record (n: low is over high)",
        ),
        (line(args=GOOD["args"] * 2), "found a damaged record (an argument is there twice)"),  # type: ignore[operator]
        (line(constexprs={"C": {}}), "found the dtype None for C, which this version does not know"),
    ],
)
def test_lines_that_are_no_records(tmp_path: Path, bad: bytes, fault: str) -> None:
    """Named by number; passed over, and said, where that was asked for."""
    file = tmp_path / "calls.jsonl"
    file.write_bytes(line() + bad + b"\n" + line())
    with pytest.raises(UsageError) as error:
        read_records(file)
    hint = "delete these lines, or pass --skip-bad to go on without them"
    assert str(error.value) == f"{file}:2: {fault}\n{hint}"
    read = read_records(file, skip_bad=True)
    assert [r.count for r in read.records] == [4]
    assert read.notes == (f"{file}:2: {fault}; passed over",)


def test_a_line_that_was_cut_off_is_noted(tmp_path: Path) -> None:
    """Only the last one can be: a writer ends the line of one that was stopped before it adds its own."""
    file = tmp_path / "calls.jsonl"
    for cut in (line()[:-1], line()[:20], b"{"):
        file.write_bytes(line() + cut)
        read = read_records(file)
        assert [r.count for r in read.records] == [2]
        assert read.notes == (f"{file}:2: passed over, the line was cut off",)
    file.write_bytes(b"")
    assert read_records(file).records == ()


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_bytes(b"x\n" * 30)
    with pytest.raises(UsageError) as error:
        read_records(file)
    assert f"… and 10 more lines of {file}" in str(error.value)


@pytest.mark.parametrize(
    ("make", "found"), [(None, "found no such file or directory"), ("dir", "found no regular file")]
)
def test_files_that_cannot_be_read(tmp_path: Path, make: str | None, found: str) -> None:
    file = tmp_path / "calls.jsonl"
    if make:
        file.mkdir()
    with pytest.raises(UsageError, match=found):
        read_records(file)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("r") / "calls.jsonl"
    file.write_bytes(line() + data)
    assert 2 in [r.count for r in read_records(file, skip_bad=True).records]


@given(st.floats(allow_nan=False), st.sampled_from(["fp16", "bf16", "fp32", "fp64"]))
def test_the_range_of_a_float_is_the_loaders(value: float, type_: str) -> None:
    """A float fits a type in the record where the loader would pass it."""
    name = next(d.name for d in DTYPES.values() if d.scalar == type_)
    fits = FLOAT_RANGES.index(float_range(value)) <= FLOAT_RANGES.index(name)
    assert fits == (scalar_fault("x", type_, value) is None)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, (False, -1)),
        (1, (False, 0)),
        (2, (False, 1)),
        (3, (False, 2)),
        (4, (False, 2)),
        (5, (False, 3)),
        (-5, (True, 3)),
    ],
)
def test_extent_classes_end_at_powers_of_two(value: int, kind: tuple[bool, int]) -> None:
    assert extent_class(value) == kind
