"""Where in a spec's grid a recorded call belongs: the values of axes that would serve it, also new ones.

Pure: nothing is changed here. A new value of an axis may need new rows in the tables by that
axis; what the call does not say, and no rule of the table gives, makes a value impossible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

from aot.build.evaluate import Combination, combine
from aot.build.recordneeds import Fault, extent, faults, fits, launch, power_of_2, runnable, scalar_types
from aot.build.recordtables import (
    NewRow,
    Row,
    axis_value,
    is_reference,
    listed_values,
    new_label,
    table_rows,
    tables_by,
    with_rows,
)
from aot.dtypes import DTYPES
from aot.expr import Expr, ExprError
from aot.manifest import DTypeConst, same_const
from aot.recordfile import PointerSeen, Record
from aot.spec import (
    Axis,
    Block,
    BucketAxis,
    DTypeValue,
    KernelSpec,
    PointerParam,
    ScalarParam,
)
from aot.spec import Const as AxisValue

_MOST_POINTS = 100_000
_LARGEST_BOUND = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A row of an axis (a bucket axis' bound alone in a tuple). ``rows``: what tables need if it is new."""

    row: Row
    new: bool
    rows: tuple[NewRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A combination of block ``block`` that would serve a record; ``choices`` in the order of its axes."""

    block: int
    choices: tuple[Choice, ...]

    @property
    def new(self) -> tuple[tuple[int, Row], ...]:
        """The rows that the block does not have, as (position of the axis, row)."""
        return tuple((index, choice.row) for index, choice in enumerate(self.choices) if choice.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlace:
    """No combination can be made to serve a record; ``reasons`` say what is in the way."""

    reasons: tuple[str, ...]


def find_place(spec: KernelSpec, record: Record, exact: bool) -> Place | NoPlace:
    """Return the place with the fewest new values; of equals the first in the spec's order."""
    best: Place | None = None
    nearest: tuple[int, tuple[str, ...]] | None = None
    for index, block in enumerate(spec.blocks):
        blocked: list[str] = []
        choices = [_choices(spec, block, axis, record, exact, blocked) for axis in block.axes]
        for picked in islice(product(*choices), _MOST_POINTS):
            place = Place(block=index, choices=picked)
            if best is not None and len(place.new) >= len(best.new):
                continue
            found = place_faults(spec, place, record)
            if not found:
                best = place
            elif nearest is None or len(found) + len(blocked) < nearest[0]:
                reasons = tuple(dict.fromkeys([*blocked, *(fault.reason for fault in found)]))
                nearest = len(found) + len(blocked), reasons
        if not all(choices) and (nearest is None or blocked):
            nearest = 0, tuple(dict.fromkeys(blocked)) or ("no value of its axes fits the call",)
    if best is not None:
        return best
    return NoPlace(reasons=nearest[1] if nearest else ("the kernel has no combination to add to",))


def place_faults(spec: KernelSpec, place: Place, record: Record) -> tuple[Fault, ...]:
    """What still speaks against a place on the best of the device's targets; empty where nothing does."""
    block = spec.blocks[place.block]
    extended = with_rows(spec, [row for choice in place.choices for row in choice.rows])
    combination = combination_of(block, [choice.row for choice in place.choices])
    least: tuple[Fault, ...] | None = None
    for target in runnable(spec, record):
        found = tuple(faults(extended, combination, target, record))
        if not found:
            return ()
        if least is None or len(found) < len(least):
            least = found
    return least or (Fault(kind="target", name="", reason="no target of the spec runs on the device"),)


def combination_of(block: Block, rows: list[Row]) -> Combination:
    """The combination that rows of a block's axes make."""
    return combine(block, dict(zip(block.axes, rows, strict=True)))


def rows_of(axis: Axis | BucketAxis) -> list[Row]:
    """The rows of an axis; each bound of a bucket axis is one."""
    return [(bound,) for bound in axis.bounds] if isinstance(axis, BucketAxis) else list(axis.rows)


def names_of(axis: Axis | BucketAxis) -> tuple[str, ...]:
    """The names that an axis sets."""
    return (axis.name,) if isinstance(axis, BucketAxis) else axis.names


# Values that an axis could have -----------------------------------------------------------


def _choices(
    spec: KernelSpec, block: Block, axis: Axis | BucketAxis, record: Record, exact: bool, blocked: list[str]
) -> list[Choice]:
    """The rows of an axis that nothing speaks against at first sight, and new ones."""
    if isinstance(axis, BucketAxis):
        return _bucket_choices(spec, axis, record, exact, blocked)
    wanted = {name: wanted_values(spec, name, record) for name in axis.names}
    for name in axis.names:
        if wanted[name] == ():
            slots = [slot for slot, _ in asked(spec, f"${name}", record)]
            blocked.append(f"no value of the axis {name} is what the call has for {', '.join(slots)}")
    choices = [
        Choice(row=row, new=False)
        for row in axis.rows
        if all(
            wanted[name] is None or is_reference(item) or any(same_const(item, w) for w in wanted[name] or ())
            for name, item in zip(axis.names, row, strict=True)
        )
    ]
    for row in _new_rows(spec, axis, wanted, record, blocked):
        if any(all(map(same_const, row, old)) for old in axis.rows):
            continue
        rows = table_rows(spec, axis.names, row, record, blocked)
        if rows is not None:
            choices.append(Choice(row=row, new=True, rows=rows))
    return choices


def _new_rows(
    spec: KernelSpec,
    axis: Axis,
    wanted: Mapping[str, tuple[AxisValue, ...] | None],
    record: Record,
    blocked: list[str],
) -> Iterator[Row]:
    unknown = [name for name in axis.names if wanted[name] is None]
    if not unknown:
        known = [wanted[name] or () for name in axis.names]
        if len(axis.names) > 1 and any(
            all(any(same_const(i, w) for w in ws) for i, ws in zip(row, known, strict=True))
            for row in axis.rows
        ):
            return
        # The first wanted value of each: a type has several that would do, and the first is enough.
        if all(known):
            yield tuple(values[0] for values in known)
    elif len(axis.names) == 1:
        # Only tables look at it: a value that a rule includes, or a name for a new row.
        tables = list(tables_by(spec, axis.names[0]))
        keys = [key for _, _, table in tables for key, _ in table.rows]
        labels = [new_label(spec, table, record) for table in tables]
        for value in dict.fromkeys([*keys, *(name for name in labels if name is not None)]):
            if not any(same_const(value, row[0]) for row in axis.rows):
                yield (value,)
    elif any(
        ws is not None
        and not any(is_reference(row[i]) or any(same_const(row[i], w) for w in ws) for row in axis.rows)
        for i, ws in enumerate(wanted[name] for name in axis.names)
    ):
        rows = ", ".join(axis.names)
        blocked.append(
            f"the rows of {rows} need one more, and the call does not say its {', '.join(unknown)}; "
            "write the row by hand"
        )


def _bucket_choices(
    spec: KernelSpec, axis: BucketAxis, record: Record, exact: bool, blocked: list[str]
) -> list[Choice]:
    choices = [Choice(row=(bound,), new=False) for bound in axis.bounds]
    try:
        most = extent(axis.of, record.values)
    except ExprError:
        # The faults of the bounds say it.
        return choices
    least = max(1, most if most is not None else 1)
    tables = list(tables_by(spec, axis.name))
    labels = [new_label(spec, table, record) for table in tables]
    bounds = [*(wanted_values(spec, axis.name, record) or ()), *labels]
    bounds += [key for _, _, table in tables for key, _ in table.rows]
    covered = any(bound is None or bound >= least for bound in axis.bounds)
    if not covered or any(name is not None for name in labels):
        bounds += [least] if exact else [power_of_2(least), least]
    fresh = dict.fromkeys(b for b in bounds if isinstance(b, int) and not isinstance(b, bool) and b >= least)
    for bound in fresh:
        if bound in axis.bounds or bound > _LARGEST_BOUND:
            continue
        rows = table_rows(spec, (axis.name,), (bound,), record, blocked)
        if rows is not None:
            choices.append(Choice(row=(bound,), new=True, rows=rows))
    return choices


def wanted_values(spec: KernelSpec, name: str, record: Record) -> tuple[AxisValue, ...] | None:
    """The values of the axis ``name`` that a call asks for through ``$name``, the best first; None: any.

    Empty where no value could do.
    """
    found: tuple[AxisValue, ...] | None = None
    for _, values in asked(spec, f"${name}", record):
        found = agreed(found, values)
    return found


def agreed(found: tuple[AxisValue, ...] | None, values: tuple[AxisValue, ...]) -> tuple[AxisValue, ...]:
    """The ``values`` that are also in ``found`` (None: any value is)."""
    return tuple(v for v in values if found is None or any(same_const(v, f) for f in found))


def asked(spec: KernelSpec, reference: str, record: Record) -> Iterator[tuple[str, tuple[AxisValue, ...]]]:
    """Each parameter or option that is ``$axis`` as it stands, and the values that a call asks of it."""
    seen, consts = record.values, record.consts
    for param in spec.params:
        arg = seen.get(param.name)
        if isinstance(param, PointerParam):
            if param.dtype == reference and isinstance(arg, PointerSeen) and arg.dtype is not None:
                yield param.name, (arg.dtype,)
        elif isinstance(param, ScalarParam):
            if param.type == reference and arg is not None and not isinstance(arg, PointerSeen):
                present = [
                    v for v in listed_values(spec, reference[1:]) if isinstance(v, str) and v in DTYPES
                ]
                kept = [v for v in present if fits(v, arg) is None]
                yield param.name, (*kept, *(v for v in scalar_types(arg) if v not in present))
        elif param.name in consts:
            wanted = consts[param.name]
            if param.value == Expr("name", name=reference):
                yield param.name, axis_value(wanted)
            elif isinstance(param.value, DTypeValue) and param.value.name == reference:
                yield param.name, ((wanted.dtype,) if isinstance(wanted, DTypeConst) else ())
    for name, value in launch(spec):
        if name in record.options and value == Expr("name", name=reference):
            yield name, axis_value(record.options[name])
