"""What serves a record, held against the loader's own selection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import recordkit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_fromrecord import calls

from aot.build.recordneeds import interval, serves
from aot.build.specfile import load_specs
from aot.expr import Expr, ExprError
from aot.loader.recordlines import Sight
from aot.loader.select import Request


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = recordkit.specs(tmp_path_factory.mktemp("k"))
    texts = recordkit.texts(folder)
    return recordkit.planned(texts, folder), {s.kernel: s for s in load_specs(list(texts))}


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=calls())
def test_a_spec_serves_what_its_bundle_serves(bundle: Any, asked: Request) -> None:
    """The build side's rules are the loader's, for every kind of call."""
    opened, specs = bundle
    kernel = opened.kernel(asked.kernel)
    record = Sight(opened.reader, kernel.info, asked).record("call")
    assert serves(specs[asked.kernel], record) == (kernel.select(asked).entry is not None)


EXPRESSIONS = [
    "a", "-a", "a + b", "a - b", "a * b", "a // b", "cdiv(a, b)", "next_power_of_2(a)", "min(a, b, 7)",
    "max(a, 3)", "max(a, 8192 // max(b, 1))", "1 + 511 // b", "a * a - b", "cdiv(a - b, 16) * 2",
]  # fmt: skip


@given(
    text=st.sampled_from(EXPRESSIONS),
    low=st.tuples(st.integers(-50, 50), st.integers(-50, 50)),
    more=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    data=st.data(),
)
def test_an_interval_holds_every_value(
    text: str, low: tuple[int, int], more: tuple[int, int], data: st.DataObject
) -> None:
    """And is exact where there is one value alone."""
    expr = Expr.parse(text)
    ranges = {name: (at, at + span) for name, at, span in zip("ab", low, more, strict=True)}
    try:
        least, most = interval(expr, ranges)
    except ExprError:
        assume(False)
    point = {name: data.draw(st.integers(*span)) for name, span in ranges.items()}
    value = expr.evaluate(point)
    assert least <= value <= most
    assert interval(expr, {name: (v, v) for name, v in point.items()}) == (value, value)


def test_a_record_of_a_range_needs_all_of_it(tmp_path: Path) -> None:
    """n between 4000 and 4200 is not served by a bucket up to 4096."""
    folder = recordkit.specs(tmp_path / "k")
    texts = recordkit.texts(folder)
    opened = recordkit.planned(texts, tmp_path)
    spec = next(s for s in load_specs(list(texts)) if s.kernel == "norm")
    asked = recordkit.request("norm", "float16", "float16", 1024, 100, 4090, 1e-5)
    one = Sight(opened.reader, opened.kernel("norm").info, asked).record("call")
    assert serves(spec, one)
    wide = tuple(msgspec.structs.replace(arg, high=4200) if arg.name == "n_cols" else arg for arg in one.args)
    assert not serves(spec, msgspec.structs.replace(one, args=wide))
