"""Axis combinations of a spec, and the values that its expressions and tables have in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from aot.expr import Expr, ExprError
from aot.manifest import Const, DTypeConst, same_const
from aot.spec import (
    Axis,
    Block,
    BucketAxis,
    ConstexprParam,
    DTypeValue,
    Fixed,
    KernelSpec,
    Rule,
    Table,
    Value,
)
from aot.spec import Const as AxisValue


class NoValue(Exception):
    """A value that a combination does not have; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One value for every axis of a block, in the axes' order. A bucket's value is its bound or None."""

    values: Mapping[str, AxisValue]
    buckets: tuple[tuple[BucketAxis, int | None], ...]


def combinations(spec: KernelSpec) -> Iterator[Combination]:
    """Yield the combinations of a spec: each block's product in written order, then the includes.

    An excluded combination is left out unless the rule names a target (see :func:`excluded`);
    one that occurs twice is yielded once.
    """
    seen: set[tuple[tuple[str, str], ...]] = set()
    for combination in _all(spec):
        key = tuple((name, f"{type(value)}{value}") for name, value in combination.values.items())
        if key not in seen:
            seen.add(key)
            yield combination


def _all(spec: KernelSpec) -> Iterator[Combination]:
    for block in spec.blocks:
        choices: list[list[tuple[AxisValue, ...]]] = [
            [(bound,) for bound in axis.bounds] if isinstance(axis, BucketAxis) else list(axis.rows)
            for axis in block.axes
        ]
        for picked in product(*choices):
            yield combine(block, dict(zip(block.axes, picked, strict=True)))
    for rule in spec.include:
        given = {name: values[0] for name, values in rule.match}
        for block in spec.blocks:
            if set(block.names) <= set(given):
                yield combine(
                    block, {axis: tuple(given[name] for name in _names(axis)) for axis in block.axes}
                )
                break


def _names(axis: Axis | BucketAxis) -> tuple[str, ...]:
    return (axis.name,) if isinstance(axis, BucketAxis) else axis.names


def combine(block: Block, picked: Mapping[Axis | BucketAxis, tuple[AxisValue, ...]]) -> Combination:
    """Return the combination of one picked row for each axis of a block; a bucket axis' row is its bound."""
    values: dict[str, AxisValue] = {}
    buckets: list[tuple[BucketAxis, int | None]] = []
    for axis in block.axes:
        for name, item in zip(_names(axis), picked[axis], strict=True):
            if isinstance(axis, BucketAxis):
                if item is not None and not isinstance(item, int):
                    raise NoValue(f"axis {name}: found {item!r}, wanted a bucket's bound")
                buckets.append((axis, item))
                values[name] = item
            elif isinstance(item, str) and item.startswith("$"):
                values[name] = values[item[1:]]
            else:
                values[name] = item
    return Combination(values=values, buckets=tuple(buckets))


def matches(rule: Rule, values: Mapping[str, AxisValue], target: str) -> bool:
    """Whether a combination on a target has all the values that the rule names."""
    for name, wanted in rule.match:
        found = target if name == "target" else values.get(name, _ABSENT)
        if not any(same_const(found, item) for item in wanted):
            return False
    return True


_ABSENT = object()


def evaluate(
    value: Value | int | str, values: Mapping[str, AxisValue], constexprs: Mapping[str, Const], target: str
) -> Const:
    """Return what a spec's value is in a combination. Raises ``NoValue``."""
    if isinstance(value, Table):
        return _look_up(value, values, constexprs, target)
    if isinstance(value, DTypeValue):
        name = values[value.name[1:]] if value.name.startswith("$") else value.name
        return DTypeConst(str(name))
    if isinstance(value, Fixed):
        return value.value
    if not isinstance(value, Expr):
        return value
    if value.op == "name" and value.name.startswith("$"):
        return values[value.name[1:]]
    numbers: dict[str, int] = {}
    for name in value.names():
        found = values.get(name[1:]) if name.startswith("$") else constexprs.get(name)
        if found is None:
            raise NoValue(f"'{value}' needs {name}, which is 'any' (unbounded) here; use a table {{by: …}}")
        if not isinstance(found, int) or isinstance(found, bool):
            raise NoValue(f"'{value}' needs a number, but {name} is {found!r}")
        numbers[name] = found
    try:
        return value.evaluate(numbers)
    except ExprError as error:
        raise NoValue(str(error)) from None


def _look_up(
    table: Table, values: Mapping[str, AxisValue], constexprs: Mapping[str, Const], target: str
) -> Const:
    key = target if table.by == "target" else values[table.by]
    try:
        result = table.pick(key)
    except LookupError:
        raise NoValue(f"the table by {table.by} has no row for {'any' if key is None else key!r}") from None
    if isinstance(result, (Expr, DTypeValue)):
        return evaluate(result, values, constexprs, target)
    return result


def constexprs_of(spec: KernelSpec, values: Mapping[str, AxisValue], target: str) -> dict[str, Const]:
    """Return every constexpr of a kernel in a combination, those that use others included."""
    pending = {p.name: p.value for p in spec.params if isinstance(p, ConstexprParam)}
    done: dict[str, Const] = {}
    while pending:
        ready = [n for n, value in pending.items() if not _needs(value) & set(pending)]
        if not ready:
            raise NoValue(f"constexprs {', '.join(pending)} are defined by each other")
        for name in ready:
            done[name] = evaluate(pending.pop(name), values, done, target)
    return {p.name: done[p.name] for p in spec.params if isinstance(p, ConstexprParam)}


def _needs(value: Value) -> frozenset[str]:
    if isinstance(value, Expr):
        return value.names()
    if isinstance(value, Table):
        return frozenset().union(*(r.names() for r in value.results if isinstance(r, Expr)))
    return frozenset()
