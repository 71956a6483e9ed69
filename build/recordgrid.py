"""Whether a new value joins its axis, and so meets every other axis, or is included with few combinations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from aot.build.evaluate import combinations
from aot.build.recordplaces import Choice, Place, combination_of, place_faults, rows_of
from aot.build.recordtables import Row
from aot.recordfile import Record
from aot.spec import Axis, BucketAxis, Const, KernelSpec

# A new value that joins its axis: block, position of the axis, row.
Joined = tuple[int, int, Row]
# Places, each with the rows to include for every axis.
Wanted = list[tuple[Place, list[list[Row]]]]
Key = tuple[tuple[str, str, str], ...]
# For each place its new values, and its combinations that the spec does not have.
Singles = list[tuple[frozenset[Joined], dict[Key, dict[str, Const]]]]
# For an axis of a block, the blocks of other kernels that share it, as lengths of their other axes.
Copies = dict[tuple[int, int], list[tuple[int, ...]]]


def spread(spec: KernelSpec, record: Record, place: Place, exact: bool) -> list[list[Row]]:
    """For each axis of the place's block the rows to include, the recorded one among them.

    A new combination gets every bucket, and every row of an axis that the call says nothing of.
    """
    found: list[list[Row]] = []
    axes = spec.blocks[place.block].axes
    for index, (axis, choice) in enumerate(zip(axes, place.choices, strict=True)):
        if exact or choice.new:
            found.append([choice.row])
        elif isinstance(axis, BucketAxis):
            found.append(rows_of(axis))
        else:
            found.append([row for row in axis.rows if _fits(spec, record, place, index, row)])
    return found


def _fits(spec: KernelSpec, record: Record, place: Place, index: int, row: Row) -> bool:
    choices = list(place.choices)
    choices[index] = Choice(row=row, new=False)
    return not place_faults(spec, Place(block=place.block, choices=tuple(choices)), record)


def joined(spec: KernelSpec, wanted: Wanted, copies: Copies, worth: int) -> list[Joined]:
    """The new values that join their axes, each for at most ``worth`` variants for one that was asked for."""
    done: list[Joined] = []
    singles = _singles(spec, wanted)
    news = dict.fromkeys((p.block, index, row) for p, _ in wanted for index, row in p.new)
    # A lower bucket would take calls that another one serves today.
    shy = {new for new in news if _is_lower_bound(spec.blocks[new[0]].axes[new[1]], new[2])}
    candidates = [[new] for new in news]
    # A combination with two new values is only complete with both.
    candidates += [[(p.block, i, row) for i, row in p.new] for p, _ in wanted if len(p.new) > 1]
    for _ in range(2):
        for candidate in candidates:
            fresh = [new for new in candidate if new not in done]
            if not fresh or shy.intersection(fresh):
                continue
            more = [*done, *fresh]
            saved = len(_left(singles, done)) - len(_left(singles, more))
            if saved and _size(spec, more, copies) - _size(spec, done, copies) <= worth * saved:
                done = more
    return done


def _is_lower_bound(axis: Axis | BucketAxis, row: Row) -> bool:
    if not isinstance(axis, BucketAxis):
        return False
    return any(bound is None or (row[0] is not None and bound > int(row[0])) for bound in axis.bounds)


def _size(spec: KernelSpec, done: Sequence[Joined], copies: Copies) -> int:
    """How many combinations the products of all blocks have, with rows that joined."""
    size = 0
    for position, block in enumerate(spec.blocks):
        rows = [len(rows_of(axis)) for axis in block.axes]
        for at, index, _ in done:
            rows[index] += at == position
        size += prod(rows)
    # A shared axis grows in the file's other kernels too.
    return size + sum(prod(others) for at, index, _ in done for others in copies.get((at, index), ()))


def included(spec: KernelSpec, wanted: Wanted, done: Sequence[Joined]) -> list[dict[str, Const]]:
    """The combinations to include, given what joins its axis; none that the spec has."""
    return list(_left(_singles(spec, wanted), done).values())


def _singles(spec: KernelSpec, wanted: Wanted) -> Singles:
    known = {_key(combination.values) for combination in combinations(spec)}
    found: Singles = []
    for place, spread in wanted:
        news = frozenset((place.block, index, row) for index, row in place.new)
        block = spec.blocks[place.block]
        combined = (combination_of(block, list(rows)).values for rows in product(*spread))
        keyed = {_key(values): dict(values) for values in combined}
        found.append((news, {key: values for key, values in keyed.items() if key not in known}))
    return found


def _left(singles: Singles, done: Sequence[Joined]) -> dict[Key, dict[str, Const]]:
    left: dict[Key, dict[str, Const]] = {}
    for news, combined in singles:
        if not news.issubset(done):
            left |= combined
    return left


def _key(values: Mapping[str, Const]) -> Key:
    return tuple((name, type(value).__name__, str(value)) for name, value in values.items())
