"""Changes to spec texts in every style that YAML has: they say what they should, and the rest stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aot.build.specedit import SpecText
from aot.build.yamlnodes import Faults, ScalarNode, read_tree
from aot.build.yamlspans import EditError, scalar

BLOCK = """\
# a comment
spec_version: 1
kernel: k       # its name
source: k.py:k
axes:
  op:
  - sum         # the first
  # between
  - prod

  io:
    zip: [a, b]
    rows:
    - [1, 2]
  n:
    buckets:
    - 16
    - any
params:
  x:
    pointer: float32
    align: 16
  c:
    constexpr:
      by: op
      sum: 1
      else: 2
launch:
  num_warps: 4
targets:
- sm_80         # old

# the end
"""

FLOW = """\
{spec_version: 1, kernel: k, source: k.py:k,
 axes: {op: [sum, prod], io: {zip: [a, b], rows: [[1, 2]]}, n: {buckets: [16, any]}},
 params: {x: {pointer: float32, align: 16},
          c: {constexpr: {by: op, sum: 1, else: 2}}},  # two
 launch: {num_warps: 4}, targets: [sm_80]}
"""

MIXED = """\
spec_version: 1
kernel: "k"
source: 'k.py:k'
axes: {op: [sum,
            prod], io: {zip: [a, b], rows: [[1, 2],]}, n: {buckets: [16, any]}}
params: {x: {pointer: float32, align: 16}, c: {constexpr: {by: op, sum: 1, else: 2}}}
launch: {num_warps: 4}
targets: [sm_80]"""

STYLES = {
    "block": BLOCK,
    "flow": FLOW,
    "mixed": MIXED,
    "carriage returns": BLOCK.replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + BLOCK,
    "several kernels": "spec_version: 1\nkernels:\n- kernel: other\n  source: o.py:o\n- "
    + "\n  ".join(BLOCK.split("\n", 2)[2].rstrip().splitlines())
    + "\n",
}

EDITS: dict[str, tuple[Callable[[SpecText], None], Callable[[dict[str, Any]], None]]] = {
    "target": (
        lambda t: t.add_target("k", "sm_90a"),
        lambda s: s["targets"].append("sm_90a"),
    ),
    "value": (
        lambda t: t.add_value("k", 0, "op", ("true",), False),
        lambda s: s["axes"]["op"].append("true"),
    ),
    "row": (
        lambda t: t.add_value("k", 0, "b", (3, "x y"), False),
        lambda s: s["axes"]["io"]["rows"].append([3, "x y"]),
    ),
    "bound": (
        lambda t: t.add_value("k", 0, "n", (64,), True),
        lambda s: s["axes"]["n"]["buckets"].insert(1, 64),
    ),
    "lower bound": (
        lambda t: t.add_value("k", 0, "n", (8,), True),
        lambda s: s["axes"]["n"]["buckets"].insert(0, 8),
    ),
    "axis": (
        lambda t: t.new_axis("k", "wide", False),
        lambda s: s["axes"].update(wide=[False]),
    ),
    "claim": (
        lambda t: t.set_param("k", "x", "align", "[16, 1]"),
        lambda s: s["params"]["x"].update(align=[16, 1]),
    ),
    "new key": (
        lambda t: t.set_param("k", "x", "storage", "bits"),
        lambda s: s["params"]["x"].update(storage="bits"),
    ),
    "whole table": (
        lambda t: t.set_param("k", "c", "constexpr", "$op"),
        lambda s: s["params"]["c"].update(constexpr="$op"),
    ),
    "table row": (
        lambda t: t.add_row("k", "c", False, "prod", None),
        lambda s: s["params"]["c"]["constexpr"].update(prod=None),
    ),
    "option": (
        lambda t: t.set_option("k", "num_warps", "8"),
        lambda s: s["launch"].update(num_warps=8),
    ),
    "new option": (
        lambda t: t.set_option("k", "num_stages", "2"),
        lambda s: s["launch"].update(num_stages=2),
    ),
    "rule": (
        lambda t: t.include("k", [{"op": "max", "n": None}, {"op": "no", "n": 4}]),
        lambda s: s.update(
            include=[
                {"op": "max", "n": "any", "why": "recorded calls"},
                {"op": "no", "n": 4, "why": "recorded calls"},
            ]
        ),
    ),
    "source": (
        lambda t: t.set_source("k", "../k.py:k"),
        lambda s: s.update(source="../k.py:k"),
    ),
}  # fmt: skip


def kernel_of(text: str) -> dict[str, Any]:
    loaded = yaml.safe_load(text)
    found: dict[str, Any] = next(k for k in loaded.get("kernels", [loaded]) if k["kernel"] == "k")
    return found


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_says_what_it_should_and_keeps_the_rest(style: str, edit: str) -> None:
    change, expected = EDITS[edit]
    before = STYLES[style]
    text = SpecText(before)
    change(text)
    wanted = kernel_of(before)
    expected(wanted)
    assert kernel_of(text.text) == wanted
    # Comments, blank lines, order and line ends.
    assert [c for c in text.text.split() if c == "#"] == [c for c in before.split() if c == "#"]
    assert text.text.count("\r") in (0, text.text.count("\n"))
    kept = [line for line in before.splitlines() if line in text.text.splitlines()]
    assert len(kept) >= len(before.splitlines()) - 3
    # The strict reader takes it too.
    faults = Faults("f")
    assert read_tree(text.text.encode(), faults) is not None
    assert list(faults.lines()) == []


@pytest.mark.parametrize("style", STYLES)
def test_all_edits_one_after_the_other(style: str) -> None:
    text = SpecText(STYLES[style])
    wanted = kernel_of(STYLES[style])
    for name, (change, expected) in EDITS.items():
        if name != "whole table":
            change(text)
            expected(wanted)
    assert kernel_of(text.text) == wanted


def test_what_is_not_written_out_cannot_be_changed() -> None:
    """A key that is merged in belongs to more than one place."""
    text = SpecText(
        "spec_version: 1\nbase: &b {align: 16}\nkernel: k\nsource: k.py:k\nparams:\n"
        "  x: {<<: *b, pointer: float32}\ntargets: [sm_80]\n"
    )
    with pytest.raises(EditError, match="merged in with <<"):
        text.param_text("k", "x", "align")
    with pytest.raises(EditError, match="found no kernel 'other' written out"):
        text.add_target("other", "sm_90")
    with pytest.raises(EditError, match="'params' not written out"):
        SpecText("kernel: k\nsource: k.py:k\n").set_param("k", "x", "align", "1")


VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)


@given(VALUES)
def test_a_value_reads_back_as_itself(value: bool | int | float | str) -> None:
    """By the reader of specs, in a list, whatever YAML 1.1 would make of it."""
    faults = Faults("f")
    tree = read_tree(f"[{scalar(value)}, 1]".encode(), faults)
    assert list(faults.lines()) == []
    node = tree.items[0]  # type: ignore[union-attr]
    assert isinstance(node, ScalarNode)
    assert (type(node.value), node.value) == (type(value), value)
