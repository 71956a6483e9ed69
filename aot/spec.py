"""A kernel spec as values: what a YAML file says, after every check that needs no compiler.

Nothing here reads YAML (``aot.build.specfile`` does) and nothing is a dict: past the
parser a spec is frozen, hashable and typed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aot.dtypes import Storage
from aot.expr import Expr
from aot.target import Target

Const = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the kernel function lives: ``kernels.py:fn`` beside the spec, or ``package.module:fn``.

    ``path`` is the Python file (absolute) or None; ``module`` is the dotted module or None;
    exactly one is set. ``written`` is the text as the spec has it.
    """

    written: str
    path: str | None
    module: str | None
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An enumerated axis. A zipped axis sets several ``names`` from each row of ``rows``.

    A row's item may be a string ``$other``: it takes the value of an earlier axis.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[Const, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAxis:
    """Ranges of an extent, each named by its upper bound; None is unbounded and comes last.

    ``of`` is the extent, an expression over the kernel's int parameters.
    """

    name: str
    bounds: tuple[int | None, ...]
    of: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One grid of combinations: the product of its axes. A spec is the union of its blocks."""

    axes: tuple[Axis | BucketAxis, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every axis name of the block, in order."""
        return tuple(
            name for a in self.axes for name in ((a.name,) if isinstance(a, BucketAxis) else a.names)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DTypeValue:
    """A constexpr that the kernel receives as a Triton dtype. ``name`` is a dtype or ``$axis``."""

    name: str


Result = Const | Expr | DTypeValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``{by: axis, value: result, …, else: result}``: a result for each value of an axis, or of ``target``.

    ``rows`` keeps the written order and covers every value that the axis has; a row that
    only ``else`` covers comes last. A bucket axis is keyed by its bound (None for
    ``any``), ``target`` by its canonical spelling, a dtype by torch's name. ``otherwise``
    is the result of ``else``, alone in a tuple, or empty: a target that the spec does not
    list may need it.
    """

    by: str
    rows: tuple[tuple[Const, Result], ...]
    otherwise: tuple[Result, ...] = ()

    def pick(self, value: Const) -> Result:
        """Return the result for a value of ``by``; 1, 1.0 and True are three values.

        Raises ``LookupError`` where no row has it and there is no ``else``.
        """
        for key, result in self.rows:
            if type(key) is type(value) and key == value:
                return result
        if self.otherwise:
            return self.otherwise[0]
        raise LookupError(f"the table by {self.by} has no row for {'any' if value is None else value!r}")

    @property
    def results(self) -> tuple[Result, ...]:
        """Every result, that of ``else`` last."""
        return tuple(result for _, result in self.rows) + self.otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A constexpr or option given as it stands: a number, a bool, None, or a ``{text: …}``."""

    value: Const


Value = Fixed | Expr | Table | DTypeValue
Specialization = Literal["1", "16", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerParam:
    """A tensor argument. ``dtype`` is a dtype's name or ``$axis``; ``align`` the variants
    to build, strictest first (16: the address is a multiple of 16 bytes; 1: any address),
    or a table whose results are 16 or 1."""

    name: str
    dtype: str
    align: tuple[int, ...] | Table
    storage: Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarParam:
    """A number argument. ``type`` is a dtype's name or ``$axis``. ``specialize`` lists the
    variants to build, strictest first: the value is 1, a multiple of 16, or any; or it is
    a table whose results are such words."""

    name: str
    type: str
    specialize: tuple[Specialization, ...] | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstexprParam:
    """A ``tl.constexpr`` argument and where its value comes from."""

    name: str
    value: Value


Param = PointerParam | ScalarParam | ConstexprParam


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a variant is compiled and launched.

    ``grid`` is one to three expressions over run-time arguments, constexprs and axes, or
    None where every caller brings a grid.
    """

    grid: tuple[Expr, ...] | None
    num_warps: Value
    num_stages: Value
    num_ctas: Value
    maxnreg: Value | None
    fp_fusion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An ``exclude`` or ``include`` entry: values an axis must have, and the reason.

    For ``exclude`` each axis lists one or more values, and ``target`` may be one of the
    names; for ``include`` every axis of a block has exactly one value.
    """

    match: tuple[tuple[str, tuple[Const, ...]], ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """One kernel of one spec file. ``file`` is the path as the user gave it, ``line`` where it starts.

    ``general`` names the kernel that takes what this one does not: a fast class for some inputs
    leaves no hole where another kernel of the same op and dtype serves the rest.
    """

    kernel: str
    file: str
    line: int
    source: Source
    blocks: tuple[Block, ...]
    params: tuple[Param, ...]
    launch: Launch
    targets: tuple[Target, ...]
    exclude: tuple[Rule, ...]
    include: tuple[Rule, ...]
    general: str | None = None
