"""Values, parameters and launch options of one kernel: drafts to ``aot.spec``, every name looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from aot.build.axes import Axes, listed
from aot.build.claims import items
from aot.build.drafts import (
    At,
    ConstexprDraft,
    DTypeRef,
    Item,
    LaunchDraft,
    ParamDraft,
    PointerDraft,
    ScalarDraft,
    TableDraft,
    Text,
    ValueDraft,
)
from aot.build.yamlnodes import Faults
from aot.errors import nearest
from aot.expr import Expr
from aot.spec import (
    Const,
    ConstexprParam,
    DTypeValue,
    Fixed,
    Launch,
    Param,
    PointerParam,
    Result,
    ScalarParam,
    Specialization,
    Table,
    Value,
)
from aot.target import Target


@dataclass(frozen=True, slots=True)
class Scope:
    """What the values of one kernel may refer to.

    ``constexprs`` maps each constexpr to its draft, ``ints`` are the int parameters;
    ``unsure``: a part had a fault, so that a name that is not known may be one of it.
    """

    axes: Axes
    targets: tuple[Target, ...]
    constexprs: Mapping[str, ValueDraft]
    ints: frozenset[str]
    unsure: bool
    faults: Faults

    def expr(self, at: At[Expr], names: frozenset[str], what: str, *, whole: bool = False) -> Expr:
        """Check an expression over ``names`` (``what`` they are) and axes.

        ``whole``: an axis that stands alone gives its value, of whatever type.
        """
        alone = whole and at.value.op == "name"
        for name in sorted(at.value.names()):
            if name.startswith("$"):
                if self.axes.check_name(name[1:], at):
                    why = self.axes.no_integer(name[1:])
                    if why and not (alone and not self.axes.is_bucket(name[1:])):
                        self.faults.add(at.mark, f"found the axis {name}, {why}")
            elif name not in names:
                if not self.unsure:
                    self.faults.add(
                        at.mark,
                        f"found the name {name!r}, wanted {what}: {listed(sorted(names)) or 'there is none'}"
                        + (nearest(name, names) or self._other(name, whole)),
                    )
            elif name in self.constexprs and (other := self._no_integer(self.constexprs[name])):
                self.faults.add(
                    at.mark, f"found the constexpr {name!r}, which is {other}, wanted one that is an integer"
                )
        return at.value

    def _other(self, name: str, text: bool) -> str:
        if self.axes.has(name):
            return f"; write ${name} for the axis"
        return f'; write {{text: "{name}"}} for a string' if text and name not in self.ints else ""

    def _no_integer(self, draft: ValueDraft) -> str:
        for item in items(draft):
            match item.value:
                case Text():
                    return "a string"
                case DTypeRef():
                    return "a dtype"
                case bool() | float() | None:
                    return listed([item.value]) if item.value is not None else "null"
                case Expr(op="name", name=name) if name[:1] == "$" and self.axes.has(name[1:]):
                    if self.axes.no_integer(name[1:]):
                        return f"the axis {name}"
        return ""

    def dtype_axis(self, name: str, at: At[object]) -> None:
        """Check that a ``$axis`` for a dtype is an axis of names."""
        if name.startswith("$") and self.axes.check_name(name[1:], at) and self.axes.is_bucket(name[1:]):
            self.faults.add(at.mark, f"found the axis {name}, which has buckets, wanted one of dtypes")

    def _result(self, at: At[Item], names: frozenset[str], whole: bool) -> Result:
        match at.value:
            case Expr():
                return self.expr(At(at.value, at.mark), names, "a constexpr or $axis", whole=whole)
            case Text():
                return at.value.value
            case DTypeRef():
                self.dtype_axis(at.value.name, at)
                return DTypeValue(name=at.value.name)
        return at.value

    def value(self, draft: ValueDraft, names: frozenset[str], *, whole: bool) -> Value | None:
        """Convert a constexpr or (not ``whole``) a launch option; None where a table had a fault."""
        if isinstance(draft, TableDraft):
            return self.table(draft, lambda at: self._result(at, names, whole))
        result = self._result(draft, names, whole)
        return result if isinstance(result, (Expr, DTypeValue)) else Fixed(value=result)

    def number(self, draft: ValueDraft | None, default: int) -> Value | None:
        """Convert a launch option, whose expressions are over constexprs and axes."""
        if draft is None:
            return Fixed(value=default)
        return self.value(draft, frozenset(self.constexprs), whole=False)

    def table(self, draft: TableDraft, convert: Callable[[At[Item]], Result]) -> Table | None:
        """Convert a table; its rows must cover every value of the axis, unless there is ``else``."""
        by = draft.by.value
        if not self.axes.check_name(by, draft.by, target=True):
            return None
        rows: dict[tuple[type, Const], tuple[Const, Result]] = {}
        sound = True
        for node, item in draft.rows:
            key = self.axes.key(by, node)
            result = convert(item)
            if key is None:
                sound = False
            elif (type(key.value), key.value) in rows:
                sound = False
                self.faults.add(node.mark, f"found a row for {listed([key.value])} a second time, wanted one")
            else:
                rows[(type(key.value), key.value)] = (key.value, result)
        otherwise = () if draft.otherwise is None else (convert(draft.otherwise),)
        every = [str(t) for t in self.targets] if by == "target" else self.axes.values(by)
        missing = [v for v in every or () if (type(v), v) not in rows]
        if missing and sound and not otherwise:
            self.faults.add(
                draft.mark,
                f"found no row for {listed(missing)}, wanted one for every value of "
                + ("targets" if by == "target" else f"the axis {by!r}")
                + ", or else: …",
            )
        filled = [(value, result) for value in missing for result in otherwise]
        return Table(by=by, rows=(*rows.values(), *filled), otherwise=otherwise) if sound else None

    def param(self, name: At[str], draft: ParamDraft) -> Param | None:
        """Convert one parameter."""
        match draft:
            case PointerDraft():
                self.dtype_axis(draft.dtype.value, draft.dtype)
                align = self._claims(draft.align, (16, 1), 1)
                if align is None:
                    return None
                return PointerParam(
                    name=name.value,
                    dtype=draft.dtype.value,
                    align=align if isinstance(align, Table) else tuple(int(str(a)) for a in align),
                    storage=draft.storage,
                )
            case ScalarDraft():
                self.dtype_axis(draft.type.value, draft.type)
                specialize = self._claims(draft.specialize, ("1", "16", "any"), "any")
                self._check_bool(name, draft, specialize)
                if specialize is None:
                    return None
                return ScalarParam(
                    name=name.value,
                    type=draft.type.value,
                    specialize=specialize
                    if isinstance(specialize, Table)
                    else cast(tuple[Specialization, ...], specialize),
                )
            case ConstexprDraft():
                value = self.value(draft.value, frozenset(self.constexprs) - {name.value}, whole=True)
                return None if value is None else ConstexprParam(name=name.value, value=value)

    def _claims(
        self, draft: tuple[At[Item], ...] | TableDraft | None, order: tuple[Const, ...], default: Const
    ) -> tuple[Const, ...] | Table | None:
        """Convert claims, strictest first in ``order``; the words of a specialization are strings."""

        def word(at: At[Item]) -> Const:
            return next(claim for claim in order if str(claim) == str(at.value))

        if draft is None:
            return (default,)
        if isinstance(draft, TableDraft):
            return self.table(draft, word)
        found = [word(at) for at in draft]
        return tuple(claim for claim in order if claim in found)

    def _check_bool(
        self, name: At[str], draft: ScalarDraft, claims: tuple[Const, ...] | Table | None
    ) -> None:
        types: tuple[Const, ...] | None = (draft.type.value,)
        if draft.type.value.startswith("$"):
            axis = draft.type.value[1:]
            types = self.axes.values(axis) if self.axes.has(axis) else None
        results = claims.results if isinstance(claims, Table) else claims
        if types and "bool" in types and any(claim != "any" for claim in results or ()):
            self.faults.add(name.mark, f"found a bool {name.value!r} specialized, wanted 'specialize: any'")

    def launch(self, draft: LaunchDraft) -> Launch | None:
        """Convert the launch options."""
        names = frozenset(self.constexprs) | self.ints
        what = "an int parameter, a constexpr or $axis"
        grid = None if draft.grid is None else tuple(self.expr(at, names, what) for at in draft.grid)
        warps, stages = self.number(draft.num_warps, 4), self.number(draft.num_stages, 3)
        ctas = self.number(draft.num_ctas, 1)
        unlimited = draft.maxnreg is None or (isinstance(draft.maxnreg, At) and draft.maxnreg.value is None)
        maxnreg = None if unlimited else self.number(draft.maxnreg, 0)
        if warps is None or stages is None or ctas is None or (maxnreg is None and not unlimited):
            return None
        return Launch(
            grid=grid,
            num_warps=warps,
            num_stages=stages,
            num_ctas=ctas,
            maxnreg=maxnreg,
            fp_fusion=draft.fp_fusion,
        )
