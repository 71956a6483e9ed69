"""The axes of one kernel: drafts to ``aot.spec`` blocks, and what every other part asks of an axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from aot.build.drafts import At, AxesDraft, AxisDraft, Buckets, ListAxis
from aot.build.language import BOUND
from aot.build.leaves import FLOAT_TYPES, INT_TYPES, TARGET, axis_value, canonical_dtype, string
from aot.build.shapes import Leaf
from aot.build.yamlnodes import Faults, ScalarNode, brief
from aot.dtypes import DTYPES
from aot.errors import nearest
from aot.expr import Expr
from aot.spec import Axis, Block, BucketAxis, Const

# What an axis is used as, and the dtypes that its values may then name.
ROLES: dict[str, tuple[str, ...]] = {
    "dtype": tuple(DTYPES),
    "int": INT_TYPES,
    "float": FLOAT_TYPES,
}


def listed(values: Iterable[Const]) -> str:
    """Write values for a message, the first twelve of many; None is ``any``."""
    words = ["any" if v is None else str(v).lower() if isinstance(v, bool) else brief(str(v)) for v in values]
    more = f", … ({len(words)} in all)" if len(words) > 12 else ""
    return ", ".join(words[:12]) + more


def _typed(value: Const) -> tuple[type, Const]:
    return type(value), value


@dataclass(slots=True)
class _Info:
    """What the blocks together say of one name; ``values`` is keyed by type and value."""

    bucket: bool
    values: dict[tuple[type, Const], Const]
    blocks: int = 0
    sound: bool = True


class Axes:
    """The axes of a kernel. ``blocks`` are the spec's; the rest answers questions about a name.

    ``roles`` says for which names the values are dtypes (see ``ROLES``), ``ints`` which
    names an extent may be made of, None where that is not known. Faults are added to
    ``faults``; names of parts that had faults are known, and nothing more is said of them.
    """

    def __init__(
        self,
        drafts: tuple[AxesDraft, ...] | None,
        roles: Mapping[str, frozenset[str]],
        ints: frozenset[str] | None,
        faults: Faults,
    ) -> None:
        self._faults = faults
        self._ints = ints
        self._names: dict[str, _Info] = {}
        self._count = len(drafts or ())
        # Where a part could not be read, a name that is not known may be in it.
        self.unsure = drafts is None or any(axis is None for block in drafts for _, axis in block)
        # Whether ``blocks`` has every axis that was written.
        self.whole = not self.unsure
        self._roles = self._spread(drafts or (), roles)
        self.blocks = tuple(Block(axes=tuple(self._block(draft))) for draft in drafts or ())

    @staticmethod
    def _spread(
        drafts: tuple[AxesDraft, ...], roles: Mapping[str, frozenset[str]]
    ) -> dict[str, frozenset[str]]:
        """Add to the roles of ``x`` those of every axis that takes its value with ``$x``."""
        spread = dict(roles)
        # A reference goes to an earlier axis of its block, so one backward pass follows all
        # of a block's; a second block can add roles that the first then needs.
        for _ in drafts:
            for draft in drafts:
                for key, axis in reversed(draft):
                    if not isinstance(axis, ListAxis):
                        continue
                    for name, column in zip(
                        axis.names or (key,), zip(*axis.rows, strict=False), strict=False
                    ):
                        for node in column:
                            if _is_reference(node):
                                known = spread.get(node.text[1:], frozenset())
                                spread[node.text[1:]] = known | spread.get(name.value, frozenset())
        return spread

    def _block(self, draft: AxesDraft) -> Iterator[Axis | BucketAxis]:
        seen: dict[str, At[str]] = {}
        columns: dict[str, dict[tuple[type, Const], Const]] = {}
        for key, axis in draft:
            names = axis.names if isinstance(axis, ListAxis) and axis.names else (key,)
            for name in names:
                if (first := seen.setdefault(name.value, name)) is not name:
                    self._faults.add(
                        name.mark,
                        f"found the axis {name.value!r} a second time, "
                        f"wanted it once (first on line {first.mark.line})",
                    )
            made = self._axis(key, names, axis, columns)
            if made is None:
                self.whole = False
            else:
                yield made
            for name in names:
                if seen[name.value] is name:
                    self._register(name, isinstance(axis, Buckets), columns.get(name.value))
                columns.setdefault(name.value, {})

    def _register(self, name: At[str], bucket: bool, column: dict[tuple[type, Const], Const] | None) -> None:
        info = self._names.setdefault(name.value, _Info(bucket, {}))
        info.blocks += 1
        if column is None:
            info.sound = False
        elif info.sound and info.bucket != bucket:
            self._faults.add(
                name.mark,
                f"found {name.value!r} as buckets in one block and as a list in another, wanted one",
            )
        else:
            info.values.update(column)

    def _axis(
        self,
        key: At[str],
        names: tuple[At[str], ...],
        axis: AxisDraft | None,
        columns: dict[str, dict[tuple[type, Const], Const]],
    ) -> Axis | BucketAxis | None:
        """Convert one axis, and put the values of its names into ``columns``."""
        if axis is None:
            return None
        if isinstance(axis, Buckets):
            bounds = self._bounds(axis)
            of = self._extent(key, axis)
            if bounds is not None:
                columns[key.value] = {_typed(bound): bound for bound in bounds}
            return BucketAxis(name=key.value, bounds=bounds, of=of) if bounds and of else None
        rows: dict[tuple[tuple[type, Const], ...], tuple[Const, ...]] = {}
        leaves = [self._leaf(name.value) for name in names]
        for nodes in axis.rows:
            row = self._row(names, leaves, nodes, columns)
            if row is None:
                return None
            if rows.setdefault(tuple(map(_typed, row)), row) is not row:
                texts = ", ".join(brief(node.text) for node in nodes)
                what = texts if len(nodes) == 1 else f"the row {texts}"
                self._faults.add(nodes[0].mark, f"found {what} a second time, wanted each value once")
        for index, name in enumerate(names):
            column: dict[tuple[type, Const], Const] = {}
            for row in rows.values():
                item = row[index]
                if isinstance(item, str) and item.startswith("$"):
                    column.update(columns.get(item[1:], {}))
                else:
                    column[_typed(item)] = item
            columns[name.value] = column
        return Axis(names=tuple(n.value for n in names), rows=tuple(rows.values()))

    def _row(
        self,
        names: tuple[At[str], ...],
        leaves: list[Leaf[Const]],
        nodes: tuple[ScalarNode, ...],
        columns: Mapping[str, object],
    ) -> tuple[Const, ...] | None:
        if len(nodes) != len(names):
            wanted = ", ".join(name.value for name in names)
            self._faults.add(
                nodes[0].mark, f"found a row of {len(nodes)} values, wanted {len(names)}: {wanted}"
            )
            return None
        row: list[Const] = []
        for leaf, node in zip(leaves, nodes, strict=True):
            if not _is_reference(node):
                item = leaf.read(node, self._faults)
                if item is None:
                    return None
                row.append(item.value)
                continue
            earlier = [n for n in columns if n not in [m.value for m in names]]
            if node.text[1:] not in earlier or self._is_bucket(node.text[1:]):
                if not self.unsure:
                    known = [n for n in earlier if not self._is_bucket(n)]
                    self._faults.add(
                        node.mark,
                        f"found {node.text}, wanted $ and an earlier axis that is a list: "
                        f"{', '.join(known) or 'there is none'}" + nearest(node.text[1:], known),
                    )
                return None
            row.append(node.text)
        return tuple(row)

    def _is_bucket(self, name: str) -> bool:
        return name in self._names and self._names[name].bucket

    def _bounds(self, axis: Buckets) -> tuple[int | None, ...] | None:
        previous = 0
        for at in axis.bounds[:-1]:
            if at.value is None:
                self._faults.add(at.mark, "found any before the end, wanted it as the last bound")
                return None
        for at in axis.bounds:
            if at.value is not None and at.value <= previous:
                self._faults.add(
                    at.mark, f"found {at.value} after {previous}, wanted bounds in ascending order"
                )
                return None
            previous = at.value or previous
        return tuple(at.value for at in axis.bounds)

    def _extent(self, key: At[str], axis: Buckets) -> Expr | None:
        of = axis.of or At(Expr("name", name=key.value), key.mark)
        if self._ints is None:
            return None
        for name in sorted(of.value.names() - self._ints):
            hint = "" if axis.of else "; say with 'of:' what the bucket bounds"
            self._faults.add(
                of.mark,
                f"found {name!r} as the extent of buckets, wanted an int parameter: "
                f"{', '.join(sorted(self._ints)) or 'the kernel has none'}"
                + (hint or nearest(name, self._ints)),
            )
        return of.value

    # What other parts ask ------------------------------------------------------------------

    def check_name(self, name: str, at: At[object], *, target: bool = False, everywhere: bool = True) -> bool:
        """Whether ``name`` is an axis, of every block if ``everywhere``; reports it at ``at`` if not."""
        if target and name == "target":
            return True
        info = self._names.get(name)
        if info is not None and (info.blocks == self._count or not everywhere):
            return True
        if info is None and self.unsure:
            return False
        names = [*self._names, *(["target"] if target else [])]
        if info is not None:
            self._faults.add(at.mark, f"found the axis {name!r}, wanted one that every block has")
        else:
            self._faults.add(
                at.mark,
                f"found the axis {name!r}, wanted {', '.join(names) or 'none: there are no axes'}"
                + nearest(name, names),
            )
        return False

    def has(self, name: str) -> bool:
        """Whether any block has the axis."""
        return name in self._names

    def values(self, name: str) -> tuple[Const, ...] | None:
        """Every value of an axis, None for the unbounded bucket; or None where a fault hides them."""
        info = self._names[name]
        return tuple(info.values.values()) if info.sound else None

    def is_bucket(self, name: str) -> bool:
        """Whether the axis is one of buckets."""
        return self._is_bucket(name)

    def no_integer(self, name: str) -> str:
        """Say why an axis cannot be part of an expression, or return ""."""
        for value in self.values(name) or ():
            if value is None:
                return f"whose bucket 'any' has no number, wanted a table {{by: {name}, …}}"
            if not isinstance(value, int) or isinstance(value, bool):
                return f"whose value {listed([value])} is no integer, wanted an axis of integers"
        return ""

    def _leaf(self, name: str) -> Leaf[Const]:
        if self._is_bucket(name):
            return BOUND

        def accept(node: ScalarNode) -> Const:
            if name == "target":
                return str(TARGET.accept(node))
            for role in sorted(self._roles.get(name, ())):
                return canonical_dtype(string(node), self._allowed(name, role))
            return axis_value(node).value

        return Leaf(f"a value of the axis {name!r}", accept, {})

    def _allowed(self, name: str, first: str) -> tuple[str, ...]:
        roles = self._roles[name]
        return tuple(d for d in ROLES[first] if all(d in ROLES[role] for role in roles))

    def key(self, name: str, node: ScalarNode, *, known: bool = True) -> At[Const] | None:
        """Read a node as a value of the axis ``name`` (or ``target``); one it has, if ``known``."""
        at = self._leaf(name).read(node, self._faults)
        if at is None or name == "target" or not known:
            return at
        info = self._names[name]
        if not info.sound or _typed(at.value) in info.values:
            return at
        # The nearest of very many words would take minutes to find, and help nobody.
        words = [value for value in info.values.values() if isinstance(value, str)][:1000]
        self._faults.add(
            node.mark,
            f"found {listed([at.value])}, wanted a value of the axis {name!r}: "
            f"{listed(info.values.values())}" + nearest(node.text, words),
        )
        return None

    def add(self, name: str, value: Const) -> None:
        """Make ``value`` one of the axis' values, as an ``include`` rule does."""
        self._names[name].values.setdefault(_typed(value), value)


def _is_reference(node: ScalarNode) -> bool:
    return node.kind == "string" and node.text.startswith("$")
