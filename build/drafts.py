"""A spec as written: every part typed and at its place, names not yet looked up.

``aot.build.schema`` says which YAML makes which draft; ``aot.build.specvalues`` turns
drafts into ``aot.spec`` values. A part that had a fault is None here: the fault is
reported already, and whatever depends on the part is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from aot.build.yamlnodes import Mark, ScalarNode
from aot.dtypes import Storage
from aot.expr import Expr
from aot.spec import Const
from aot.target import Target

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class At(Generic[T_co]):
    """A value and where it stands."""

    value: T_co
    mark: Mark


@dataclass(frozen=True, slots=True)
class Text:
    """``{text: …}``: a literal string."""

    value: str


@dataclass(frozen=True, slots=True)
class DTypeRef:
    """``{dtype: …}``: a dtype's canonical name, or ``$axis``."""

    name: str


Item = Const | Expr | Text | DTypeRef


@dataclass(frozen=True, slots=True)
class TableDraft:
    """``{by: …}``. The keys stay nodes: what one means depends on the axis."""

    mark: Mark
    by: At[str]
    rows: tuple[tuple[ScalarNode, At[Item]], ...]
    otherwise: At[Item] | None


ValueDraft = At[Item] | TableDraft


@dataclass(frozen=True, slots=True)
class ListAxis:
    """An enumerated axis, or a zipped one with several ``names``; the items stay nodes.

    ``names`` is empty where the axis has one name, its key.
    """

    mark: Mark
    names: tuple[At[str], ...]
    rows: tuple[tuple[ScalarNode, ...], ...]


@dataclass(frozen=True, slots=True)
class Buckets:
    mark: Mark
    bounds: tuple[At[int | None], ...]
    of: At[Expr] | None


AxisDraft = ListAxis | Buckets
# A mapping of axes. An axis with a fault is None, and its name is known.
AxesDraft = tuple[tuple[At[str], AxisDraft | None], ...]


@dataclass(frozen=True, slots=True)
class PointerDraft:
    dtype: At[str]
    align: tuple[At[int], ...] | TableDraft | None
    storage: Storage


@dataclass(frozen=True, slots=True)
class ScalarDraft:
    """``kind`` is ``int`` or ``float``, the key that was written."""

    kind: str
    type: At[str]
    specialize: tuple[At[str], ...] | TableDraft | None


@dataclass(frozen=True, slots=True)
class ConstexprDraft:
    value: ValueDraft


ParamDraft = PointerDraft | ScalarDraft | ConstexprDraft
ParamsDraft = tuple[tuple[At[str], ParamDraft | None], ...]


@dataclass(frozen=True, slots=True)
class LaunchDraft:
    grid: tuple[At[Expr], ...] | None
    num_warps: ValueDraft | None
    num_stages: ValueDraft | None
    num_ctas: ValueDraft | None
    maxnreg: ValueDraft | None
    fp_fusion: bool


@dataclass(frozen=True, slots=True)
class RuleDraft:
    mark: Mark
    match: tuple[tuple[At[str], tuple[ScalarNode, ...]], ...]
    why: str


@dataclass(frozen=True, slots=True)
class KernelDraft:
    """One kernel. ``bad`` names the parts that had faults; absent parts are None and not in it."""

    mark: Mark
    bad: frozenset[str]
    kernel: At[str] | None
    source: At[str] | None
    axes: tuple[AxesDraft, ...] | None
    params: At[ParamsDraft] | None
    launch: LaunchDraft | None
    general: At[str] | None
    targets: tuple[At[Target], ...] | None
    exclude: tuple[RuleDraft, ...] | None
    include: tuple[RuleDraft, ...] | None


@dataclass(frozen=True, slots=True)
class FileDraft:
    """The ``kernels:`` form: what is shared, and each kernel (None: one that is no mapping)."""

    mark: Mark
    bad: frozenset[str]
    kernels: tuple[KernelDraft | None, ...] | None
    axes: tuple[AxesDraft, ...] | None
    targets: tuple[At[Target], ...] | None
    exclude: tuple[RuleDraft, ...] | None
    include: tuple[RuleDraft, ...] | None
