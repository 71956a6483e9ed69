"""The spec language, described once.

The parser reads a file through ``SPEC``, and the JSON Schema is printed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.build.drafts import (
    At,
    AxesDraft,
    AxisDraft,
    Buckets,
    FileDraft,
    Item,
    KernelDraft,
    LaunchDraft,
    ListAxis,
    RuleDraft,
)
from aot.build.forms import RuleOf
from aot.build.leaves import (
    AXIS_VALUE,
    EXPR,
    IDENTIFIER,
    RAW,
    TARGET,
    boolean,
    count,
    free_text,
    integer,
    one_of,
    word,
)
from aot.build.paramshapes import PARAMS, TABLE_BY, count_or_table, identity
from aot.build.shapes import ByKey, Choice, Field, Leaf, ListOf, Made, MapOf, Named, Record, Shape
from aot.build.yamlnodes import Mark, ScalarNode
from aot.expr import Expr
from aot.target import Target

SPEC_VERSION = 1
LARGEST_BOUND = 2**63 - 1

AXIS_NAME = word("an axis' name (not target, why, by or else)", rf"(?!(?:target|why|by|else)$){IDENTIFIER}")
WHY = free_text("the reason, as a string")

# Axes -------------------------------------------------------------------------------------


def _bound(node: ScalarNode) -> int | None:
    return None if node.kind == "string" and node.text == "any" else _BOUND_INT.accept(node)


_BOUND_WANTED = "an integer from 1 to 2**63 - 1, or any"
_BOUND_INT = integer(_BOUND_WANTED, range(1, LARGEST_BOUND + 1))
BOUND: Leaf[int | None] = Leaf(_BOUND_WANTED, _bound, {"anyOf": [_BOUND_INT.schema, {"const": "any"}]})


def _list_axis(mark: Mark, items: tuple[At[ScalarNode], ...]) -> AxisDraft:
    return ListAxis(mark, (), tuple((item.value,) for item in items))


def _buckets(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> AxisDraft:
    return Buckets(mark, got["buckets"], got["of"])


def _zipped(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> AxisDraft:
    rows: tuple[tuple[At[ScalarNode], ...], ...] = got["rows"]
    return ListAxis(mark, got["zip"], tuple(tuple(item.value for item in row) for row in rows))


_VALUES = ListOf("a list of at least one value", AXIS_VALUE, single=True, identity=identity)
_LISTED: Shape[AxisDraft] = Made(_VALUES, _list_axis)
_BUCKETS = Record(
    "a bucket axis",
    (
        Field(
            "buckets",
            ListOf("a list of bounds", BOUND, identity=identity),
            "Upper bounds of the extent, ascending; any, unbounded, is the last.",
            required=True,
        ),
        Field("of", EXPR, "The extent, over the kernel's int parameters; by default the one of this name."),
    ),
    _buckets,
)
_ZIPPED = Record(
    "a zipped axis",
    (
        Field(
            "zip",
            ListOf("a list of names", AXIS_NAME, identity=identity),
            "The names that each row sets.",
            required=True,
        ),
        Field(
            "rows",
            ListOf("a list of rows", ListOf("a list with a value for each name", AXIS_VALUE)),
            "A value for each name, in their order.",
            required=True,
        ),
    ),
    _zipped,
)
_AXES: Shape[AxesDraft] = Named(
    "axes",
    MapOf(
        "a mapping of axes",
        AXIS_NAME,
        Choice(
            "a value, a list of values, {buckets: …} or {zip: …, rows: …}",
            scalar=_LISTED,
            items=_LISTED,
            mapping=ByKey("an axis", {"buckets": _BUCKETS, "zip": _ZIPPED}),
        ),
    ),
)
BLOCKS: Shape[tuple[AxesDraft, ...]] = Choice(
    "a mapping of axes, or a list of such mappings",
    items=ListOf("a list of mappings", _AXES),
    mapping=Made(_AXES, lambda mark, axes: (axes,)),
)

# Launch, targets, rules -------------------------------------------------------------------


def _launch(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> LaunchDraft:
    fp_fusion = got["fp_fusion"].value if got["fp_fusion"] else True
    return LaunchDraft(**{**got, "fp_fusion": fp_fusion})


def _power_of_2(limit: int) -> Leaf[Item]:
    return count(
        f"a power of 2 from 1 to {limit}, or an expression",
        lambda n: 1 <= n <= limit and n & (n - 1) == 0,
    )


def _is_maxnreg(n: int) -> bool:
    return 1 <= n <= 255


GRID: Shape[tuple[At[Expr], ...]] = ListOf("a list of one to three expressions", EXPR, most=3)
LAUNCH = Record(
    "a mapping of launch options",
    (
        Field("grid", GRID, "Programs in x, y, z, over scalar parameters, constexprs and $axes."),
        Field(
            "num_warps",
            count_or_table("a power of 2, an expression or a table", _power_of_2(32)),
            "Default 4.",
        ),
        Field(
            "num_stages",
            count_or_table(
                "an integer, an expression or a table",
                count("an integer from 1 to 32, or an expression", lambda n: 1 <= n <= 32),
            ),
            "Default 3.",
        ),
        Field(
            "num_ctas",
            count_or_table("a power of 2, an expression or a table", _power_of_2(16)),
            "Default 1.",
        ),
        Field(
            "maxnreg",
            count_or_table(
                "an integer, an expression, null or a table",
                count("an integer from 1 to 255, an expression or null", _is_maxnreg, null=True),
                count("an integer from 1 to 255, or an expression", _is_maxnreg),
            ),
            "Most registers a thread; default null, no limit.",
        ),
        Field("fp_fusion", boolean(), "Whether a*b+c may become one fma; default true."),
    ),
    _launch,
)
_TARGETS: Shape[tuple[At[Target], ...]] = ListOf("a list of targets", TARGET, identity=identity)
_ONE: ListOf[At[ScalarNode]] = ListOf("one value", RAW, single=True, most=1)
_SOME: ListOf[At[ScalarNode]] = ListOf("a value or a list of values", RAW, single=True, identity=identity)
_EXCLUDE: Shape[tuple[RuleDraft, ...]] = ListOf(
    "a list of rules", RuleOf("{axis: value, …, why: reason}", TABLE_BY, WHY, _SOME)
)
_INCLUDE: Shape[tuple[RuleDraft, ...]] = ListOf(
    "a list of rules", RuleOf("{axis: value, …, why: reason}", TABLE_BY, WHY, _ONE)
)

# Kernels and files ------------------------------------------------------------------------


def _kernel(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> KernelDraft:
    return KernelDraft(mark=mark, bad=bad, **{k: v for k, v in got.items() if k != "spec_version"})


def _file(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> FileDraft:
    return FileDraft(mark=mark, bad=bad, **{k: v for k, v in got.items() if k != "spec_version"})


def _one_kernel_file(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> FileDraft:
    return FileDraft(mark, frozenset(), (_kernel(mark, got, bad),), None, None, None, None)


_VERSION = Field(
    "spec_version", one_of(str(SPEC_VERSION), (SPEC_VERSION,)), "Of this language.", required=True
)
_AXES_FIELD = Field(
    "axes", BLOCKS, "What is enumerated: a mapping, or a list of them whose products are united."
)
_TARGETS_DOC = "GPU architectures to compile for, such as sm_90 or sm_90a."
_RULE_FIELDS = (
    Field("exclude", _EXCLUDE, "Combinations that are not built, each with the reason."),
    Field("include", _INCLUDE, "Combinations that are built besides, each with the reason."),
)
_KERNEL_NAME = word("a name of letters, digits and _ . -", r"[A-Za-z_][A-Za-z0-9_.-]*")
_OWN_FIELDS = (
    Field(
        "kernel",
        _KERNEL_NAME,
        "The name that callers use.",
        required=True,
    ),
    Field(
        "source",
        free_text("kernels.py:function or package.module:function"),
        "The @triton.jit function: a path relative to this file, or a module.",
        required=True,
    ),
    _AXES_FIELD,
    Field("params", PARAMS, "Every parameter of the function, once, in its order.", required=True),
    Field("launch", LAUNCH, "How a variant is compiled and launched."),
    Field("general", _KERNEL_NAME, "The kernel that takes the inputs that this one does not."),
)
_ONE_KERNEL = Record(
    "a spec",
    (_VERSION, *_OWN_FIELDS, Field("targets", _TARGETS, _TARGETS_DOC, required=True), *_RULE_FIELDS),
    _one_kernel_file,
    partial=True,
)
_SHARING_KERNEL = Record(
    "a kernel",
    (*_OWN_FIELDS, Field("targets", _TARGETS, f"{_TARGETS_DOC} Replaces the shared list."), *_RULE_FIELDS),
    _kernel,
    partial=True,
)
_SHARED = Record(
    "a spec",
    (
        _VERSION,
        Field(
            "kernels", ListOf("a list of kernels", _SHARING_KERNEL), "Kernels that share axes.", required=True
        ),
        _AXES_FIELD,
        Field("targets", _TARGETS, _TARGETS_DOC),
        *_RULE_FIELDS,
    ),
    _file,
    partial=True,
)
SPEC: Shape[FileDraft] = Choice(
    "a spec: a mapping with spec_version, kernel, source, params, targets",
    mapping=ByKey("a spec", {"kernels": _SHARED}, otherwise=_ONE_KERNEL),
)
