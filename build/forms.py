"""The mappings of a spec whose keys are an axis' values or names, tables and rules, and ``{text: …}``."""

from __future__ import annotations

from dataclasses import dataclass

from aot.build.drafts import At, DTypeRef, Item, RuleDraft, TableDraft, Text
from aot.build.shapes import Json, Leaf, ListOf, Shape
from aot.build.yamlnodes import Faults, MapNode, Node, ScalarNode, describe


@dataclass(frozen=True, slots=True)
class TextForm(Shape[At[Item]]):
    """``{text: …}`` or ``{dtype: …}``, with no other key."""

    wanted: str
    key: str
    leaf: Leaf[str]

    def read(self, node: Node, faults: Faults) -> At[Item] | None:
        value = node.get(self.key) if isinstance(node, MapNode) else None
        if not isinstance(node, MapNode) or value is None or len(node.entries) != 1:
            faults.add(node.mark, f"found {describe(node)} with more keys, wanted {self.wanted}")
            return None
        got = self.leaf.read(value, faults)
        if got is None:
            return None
        return At(Text(got.value) if self.key == "text" else DTypeRef(got.value), got.mark)

    def json(self, defs: dict[str, Json]) -> Json:
        return {
            "type": "object",
            "properties": {self.key: self.leaf.json(defs)},
            "required": [self.key],
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class TableOf(Shape[TableDraft]):
    """``{by: axis, value: result, …, else: result}``."""

    wanted: str
    by: Leaf[str]
    result: Shape[At[Item]]

    def read(self, node: Node, faults: Faults) -> TableDraft | None:
        if not isinstance(node, MapNode):
            self.refuse(node, faults)
            return None
        by: At[str] | None = None
        rows: list[tuple[ScalarNode, At[Item]]] = []
        otherwise: At[Item] | None = None
        sound = True
        for key, value in node.entries:
            if key.kind == "string" and key.text == "by":
                by = self.by.read(value, faults)
                continue
            result = self.result.read(value, faults)
            if result is None:
                sound = False
            elif key.kind == "string" and key.text == "else":
                otherwise = result
            else:
                rows.append((key, result))
        if node.get("by") is None:
            faults.add(node.mark, f"found no key 'by', wanted {self.by.wanted}")
        elif by is not None and sound and not rows and otherwise is None:
            faults.add(node.mark, "found a table without rows, wanted a row for each value")
            return None
        return TableDraft(node.mark, by, tuple(rows), otherwise) if by is not None and sound else None

    def json(self, defs: dict[str, Json]) -> Json:
        return {
            "type": "object",
            "properties": {"by": self.by.json(defs)},
            "required": ["by"],
            "minProperties": 2,
            "additionalProperties": self.result.json(defs),
        }


@dataclass(frozen=True, slots=True)
class RuleOf(Shape[RuleDraft]):
    """``{axis: value, …, why: reason}``. ``values`` is one value, or a list that may be one value."""

    wanted: str
    axis: Leaf[str]
    why: Leaf[str]
    values: ListOf[At[ScalarNode]]

    def read(self, node: Node, faults: Faults) -> RuleDraft | None:
        if not isinstance(node, MapNode):
            self.refuse(node, faults)
            return None
        match: list[tuple[At[str], tuple[ScalarNode, ...]]] = []
        why: At[str] | None = None
        sound = True
        for key, value in node.entries:
            if key.kind == "string" and key.text == "why":
                why = self.why.read(value, faults)
                continue
            name = self.axis.read(key, faults)
            items = self.values.read(value, faults)
            if name is None or items is None:
                sound = False
            else:
                match.append((name, tuple(item.value for item in items)))
        if node.get("why") is None:
            faults.add(node.mark, f"found no key 'why', wanted {self.why.wanted}")
        if not match and sound:
            faults.add(node.mark, f"found no axis, wanted {self.wanted}")
        return RuleDraft(node.mark, tuple(match), why.value) if why and match and sound else None

    def json(self, defs: dict[str, Json]) -> Json:
        return {
            "type": "object",
            "properties": {"why": self.why.json(defs)},
            "required": ["why"],
            "minProperties": 2,
            "additionalProperties": self.values.json(defs),
        }
