"""The tables of a spec: which rows a new value of an axis needs in them, and what they then give.

A row is taken from the call where the call says it. Else a block that is as wide as its bucket
goes on so, and tuning goes on as for the nearest value; anything more would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aot.build.recordneeds import claim_holds, launch
from aot.expr import Expr
from aot.manifest import Const, DTypeConst, same_const
from aot.recordfile import PointerSeen, Record
from aot.spec import (
    Axis,
    ConstexprParam,
    DTypeValue,
    KernelSpec,
    Param,
    PointerParam,
    Result,
    ScalarParam,
    Table,
)
from aot.spec import Const as AxisValue

Row = tuple[AxisValue, ...]

# The name of a row for what claims nothing, and for null.
GENERAL = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A row that the table of a parameter or launch option (``slot``) needs: ``key`` gives ``result``."""

    slot: str
    is_option: bool
    key: AxisValue
    result: Result


def with_rows(spec: KernelSpec, rows: list[NewRow]) -> KernelSpec:
    """``spec`` with further rows in its tables, as the same edit of its text would give."""
    for row in rows:
        if row.is_option:
            table: Table = getattr(spec.launch, row.slot)
            options: dict[str, Any] = {row.slot: _longer(table, row)}
            spec = replace(spec, launch=replace(spec.launch, **options))
        else:
            spec = replace(
                spec, params=tuple(_with_row(p, row) if p.name == row.slot else p for p in spec.params)
            )
    return spec


def _with_row(
    param: PointerParam | ScalarParam | ConstexprParam, row: NewRow
) -> PointerParam | ScalarParam | ConstexprParam:
    if isinstance(param, PointerParam):
        assert isinstance(param.align, Table)
        return replace(param, align=_longer(param.align, row))
    if isinstance(param, ScalarParam):
        assert isinstance(param.specialize, Table)
        return replace(param, specialize=_longer(param.specialize, row))
    assert isinstance(param.value, Table)
    return replace(param, value=_longer(param.value, row))


def _longer(table: Table, row: NewRow) -> Table:
    return replace(table, rows=(*table.rows, (row.key, row.result)))


def axis_value(value: Const) -> tuple[AxisValue, ...]:
    """A constexpr or option as the value of an axis, alone in a tuple; empty where an axis cannot have it."""
    if value is None or isinstance(value, DTypeConst) or is_reference(value):
        return ()
    return () if isinstance(value, float) and value - value != 0 else (value,)


def listed_values(spec: KernelSpec, name: str) -> list[AxisValue]:
    """The values that a list axis has anywhere, those taken from other axes left out."""
    found: list[AxisValue] = []
    for block in spec.blocks:
        for axis in block.axes:
            if isinstance(axis, Axis) and name in axis.names:
                for row in axis.rows:
                    item = row[axis.names.index(name)]
                    if item not in found and not is_reference(item):
                        found.append(item)
    return found


def is_reference(item: AxisValue) -> bool:
    """Whether an item of a row takes the value of an earlier axis."""
    return isinstance(item, str) and item.startswith("$")


def _tables(spec: KernelSpec) -> Iterator[tuple[str, bool, Table]]:
    """Every table as (parameter or option, whether it is an option, table)."""
    for param in spec.params:
        value = (
            param.align
            if isinstance(param, PointerParam)
            else param.specialize
            if isinstance(param, ScalarParam)
            else param.value
        )
        if isinstance(value, Table):
            yield param.name, False, value
    for name, option in launch(spec):
        if isinstance(option, Table):
            yield name, True, option


def tables_by(spec: KernelSpec, axis: str) -> Iterator[tuple[str, bool, Table]]:
    """The tables by an axis, as (parameter or option, whether it is an option, table)."""
    return (found for found in _tables(spec) if found[2].by == axis)


def new_label(spec: KernelSpec, found: tuple[str, bool, Table], record: Record) -> AxisValue | None:
    """The name of a new row for what a call wants of a table, or None where it wants nothing new."""
    slot, is_option, table = found
    param = _param(spec, slot, is_option)
    arg = record.values.get(slot)
    if isinstance(param, PointerParam):
        strict = isinstance(arg, PointerSeen) and arg.align == 1 and 1 not in table.results
        return GENERAL if strict else None
    if isinstance(param, ScalarParam):
        held = arg is None or any(claim_holds(str(claim), arg) for claim in table.results)
        return None if held else GENERAL
    given: Mapping[str, Const] = record.options if is_option else record.consts
    if slot not in given:
        return None
    wanted = given[slot]
    if any(_gives(result, wanted) for result in table.results):
        return None
    if wanted is None:
        return GENERAL
    if isinstance(wanted, DTypeConst):
        return wanted.dtype
    return next(iter(axis_value(wanted)), None)


def _gives(result: Result, wanted: Const) -> bool:
    if isinstance(result, DTypeValue):
        return isinstance(wanted, DTypeConst) and wanted.dtype == result.name
    return not isinstance(result, Expr) and same_const(result, wanted)


def table_rows(
    spec: KernelSpec, names: tuple[str, ...], row: Row, record: Record, blocked: list[str]
) -> tuple[NewRow, ...] | None:
    """The rows that new values of an axis need; None, and a reason in ``blocked``, where one is not known."""
    found: list[NewRow] = []
    for name, key in zip(names, row, strict=True):
        if is_reference(key) or any(same_const(key, value) for value in listed_values(spec, name)):
            continue
        for slot, is_option, table in tables_by(spec, name):
            if any(same_const(key, known) for known, _ in table.rows):
                continue
            results = _row_results(_param(spec, slot, is_option), slot, is_option, table, key, record)
            if results is None:
                blocked.append(
                    f"the table of {slot} needs a row for {name} {'any' if key is None else key!r}, and the "
                    "call does not say its value; write the row by hand"
                )
                return None
            found += [NewRow(slot=slot, is_option=is_option, key=key, result=r) for r in results]
    return tuple(found)


def _param(spec: KernelSpec, slot: str, is_option: bool) -> Param | None:
    return next((p for p in spec.params if p.name == slot and not is_option), None)


def _row_results(
    param: Param | None, slot: str, is_option: bool, table: Table, key: AxisValue, record: Record
) -> tuple[Result, ...] | None:
    """The one result of a new row, none where ``else`` gives what is wanted, None where it is not known."""
    if isinstance(param, PointerParam | ScalarParam):
        # No claim serves every call.
        general: Result = 1 if isinstance(param, PointerParam) else "any"
        return () if table.otherwise == (general,) else (general,)
    given: Mapping[str, Const] = record.options if is_option else record.consts
    if slot in given:
        wanted = given[slot]
        if table.otherwise and _gives(table.otherwise[0], wanted):
            return ()
        return (DTypeValue(name=wanted.dtype) if isinstance(wanted, DTypeConst) else wanted,)
    if table.otherwise:
        return ()
    bounds = [(k, r) for k, r in table.rows if k is not None]
    if isinstance(key, int) and bounds and all(same_const(k, r) for k, r in bounds):
        # A block that is as wide as its bucket.
        return (key,)
    if is_option:
        # How it is tuned changes no result: as what it is nearest to.
        return (_nearest(table, key),)
    return None


def _nearest(table: Table, key: AxisValue) -> Result:
    below = [(k, r) for k, r in table.rows if isinstance(k, int) and isinstance(key, int) and k <= key]
    return below[-1][1] if below else table.rows[-1][1]
