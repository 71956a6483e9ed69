"""Shapes of YAML: each reads a node into a typed draft, reports what is wrong, and knows its JSON Schema.

``aot.build.schema`` describes the whole spec language with them, once: the parser reads
through that description and the JSON Schema is printed from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aot.build.drafts import At
from aot.build.yamlnodes import Faults, ListNode, MapNode, Mark, Node, ScalarNode, describe
from aot.errors import nearest

Json = dict[str, Any]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
K = TypeVar("K")


class Refused(Exception):
    """Raised by a leaf for a scalar that is not what it wants.

    ``hint`` is added to the message, ``message`` replaces it; ``column`` counts from the
    scalar's first character.
    """

    def __init__(self, hint: str = "", *, message: str = "", column: int = 0) -> None:
        self.hint = hint
        self.message = message
        self.column = column


class Shape(ABC, Generic[T_co]):
    """What a node must look like. ``wanted`` names it in messages, ``title`` in the JSON Schema."""

    wanted: str

    @abstractmethod
    def read(self, node: Node, faults: Faults) -> T_co | None:
        """Return the draft, or None after adding every fault of the node and what is in it."""

    @abstractmethod
    def json(self, defs: dict[str, Json]) -> Json:
        """Return the JSON Schema; named shapes go to ``defs`` and are referred to."""

    def refuse(self, node: Node, faults: Faults) -> None:
        """Report that ``node`` is not what was wanted."""
        faults.add(node.mark, f"found {describe(node, note=False)}, wanted {self.wanted}")


@dataclass(frozen=True, slots=True)
class Leaf(Shape[At[T_co]]):
    """One scalar. ``accept`` returns its value or raises ``Refused``."""

    wanted: str
    accept: Callable[[ScalarNode], T_co]
    schema: Json

    def read(self, node: Node, faults: Faults) -> At[T_co] | None:
        if not isinstance(node, ScalarNode):
            self.refuse(node, faults)
            return None
        try:
            return At(self.accept(node), node.mark)
        except Refused as refused:
            column = node.mark.column
            if refused.column and "\n" not in node.text:
                column += refused.column + node.quoted
            message = refused.message or f"found {describe(node)}, wanted {self.wanted}"
            faults.add(Mark(node.mark.line, column), message + refused.hint)
            return None

    def json(self, defs: dict[str, Json]) -> Json:
        return self.schema


@dataclass(frozen=True, slots=True)
class Named(Shape[T]):
    """A shape that the JSON Schema keeps under ``$defs`` and refers to."""

    name: str
    shape: Shape[T]

    @property
    def wanted(self) -> str:  # type: ignore[override]
        return self.shape.wanted

    def read(self, node: Node, faults: Faults) -> T | None:
        return self.shape.read(node, faults)

    def json(self, defs: dict[str, Json]) -> Json:
        if self.name not in defs:
            defs[self.name] = {}
            defs[self.name] = self.shape.json(defs)
        return {"$ref": f"#/$defs/{self.name}"}


@dataclass(frozen=True, slots=True)
class ListOf(Shape[tuple[T, ...]]):
    """A list of at least one item, at most ``most``. ``single``: one item may stand without its list.

    ``identity`` of an item, where given, must not occur twice.
    """

    wanted: str
    item: Shape[T]
    most: int | None = None
    single: bool = False
    identity: Callable[[T], tuple[Mark, object, str]] | None = None

    def read(self, node: Node, faults: Faults) -> tuple[T, ...] | None:
        if not isinstance(node, ListNode):
            if self.single:
                one = self.item.read(node, faults)
                return None if one is None else (one,)
            self.refuse(node, faults)
            return None
        if not node.items or (self.most is not None and len(node.items) > self.most):
            count = len(node.items) or "no"
            faults.add(node.mark, f"found a list of {count} items, wanted {self.wanted}")
            return None
        read = [self.item.read(item, faults) for item in node.items]
        items = [item for item in read if item is not None]
        fresh = self.identity is None or self._unique(items, self.identity, faults)
        return tuple(items) if fresh and len(items) == len(read) else None

    def _unique(
        self, items: list[T], identity: Callable[[T], tuple[Mark, object, str]], faults: Faults
    ) -> bool:
        seen: dict[object, Mark] = {}
        fresh = True
        for mark, key, text in map(identity, items):
            if seen.setdefault(key, mark) is not mark:
                faults.add(mark, f"found {text} a second time, wanted each value once")
                fresh = False
        return fresh

    def json(self, defs: dict[str, Json]) -> Json:
        item = self.item.json(defs)
        schema: Json = {"type": "array", "items": item, "minItems": 1}
        if self.most is not None:
            schema["maxItems"] = self.most
        if self.identity is not None:
            schema["uniqueItems"] = True
        return {"anyOf": [item, schema]} if self.single else schema


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a record. ``doc`` is the description that editors show."""

    name: str
    shape: Shape[Any]
    doc: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Record(Shape[T]):
    """A mapping with known keys.

    ``make(mark, got, bad)`` builds the draft: ``got`` holds each key that read well (absent
    ones are None), ``bad`` names those that did not. Unless ``partial``, it is called only
    where nothing is bad.
    """

    wanted: str
    fields: tuple[Field, ...]
    make: Callable[[Mark, Mapping[str, Any], frozenset[str]], T]
    partial: bool = False

    def read(self, node: Node, faults: Faults) -> T | None:
        if not isinstance(node, MapNode):
            self.refuse(node, faults)
            return None
        got: dict[str, Any] = {field.name: None for field in self.fields}
        shapes = {field.name: field.shape for field in self.fields}
        bad: set[str] = set()
        present: set[str] = set()
        for key, value in node.entries:
            if key.kind != "string" or key.text not in shapes:
                bad.add("")
                _unknown_key(key, list(shapes), faults)
                continue
            present.add(key.text)
            got[key.text] = shapes[key.text].read(value, faults)
            if got[key.text] is None:
                bad.add(key.text)
        for field in self.fields:
            if field.required and field.name not in present:
                bad.add(field.name)
                faults.add(node.mark, f"found no key {field.name!r}, wanted {field.shape.wanted}")
        if bad and not self.partial:
            return None
        return self.make(node.mark, got, frozenset(bad))

    def json(self, defs: dict[str, Json]) -> Json:
        return {
            "type": "object",
            "properties": {f.name: {"description": f.doc, **f.shape.json(defs)} for f in self.fields},
            "required": [f.name for f in self.fields if f.required],
            "additionalProperties": False,
        }


def _unknown_key(key: ScalarNode, valid: list[str], faults: Faults) -> None:
    hint = nearest(key.text, valid)
    if not hint and ")" in key.text:
        hint = "; quote an expression that holds a comma"
    faults.add(key.mark, f"found the key {describe(key)}, wanted {', '.join(valid)}{hint}")


@dataclass(frozen=True, slots=True)
class MapOf(Shape[tuple[tuple[At[str], T | None], ...]]):
    """A mapping whose keys are names of the user's own. An entry with a fault keeps its name."""

    wanted: str
    key: Leaf[str]
    value: Shape[T]

    def read(self, node: Node, faults: Faults) -> tuple[tuple[At[str], T | None], ...] | None:
        if not isinstance(node, MapNode):
            self.refuse(node, faults)
            return None
        entries: list[tuple[At[str], T | None]] = []
        for key, value in node.entries:
            name = self.key.read(key, faults)
            read = self.value.read(value, faults)
            entries.append((name, read) if name is not None else (At(key.text, key.mark), None))
        return tuple(entries)

    def json(self, defs: dict[str, Json]) -> Json:
        return {
            "type": "object",
            "propertyNames": self.key.json(defs),
            "additionalProperties": self.value.json(defs),
        }


@dataclass(frozen=True, slots=True)
class ByKey(Shape[T]):
    """A mapping of one of several forms, told apart by a key: the first in ``forms`` that is there.

    ``otherwise`` is the form of a mapping with none of the keys.
    """

    wanted: str
    forms: Mapping[str, Shape[T]]
    otherwise: Shape[T] | None = None

    def read(self, node: Node, faults: Faults) -> T | None:
        if not isinstance(node, MapNode):
            self.refuse(node, faults)
            return None
        for key, form in self.forms.items():
            if node.get(key) is not None:
                return form.read(node, faults)
        if self.otherwise is not None:
            return self.otherwise.read(node, faults)
        forms = ", ".join(self.forms)
        if node.entries:
            key_node = node.entries[0][0]
            faults.add(
                key_node.mark,
                f"found the key {describe(key_node)}, wanted one of {forms} for {self.wanted}"
                + nearest(key_node.text, self.forms),
            )
        else:
            faults.add(node.mark, f"found an empty mapping, wanted one of {forms} for {self.wanted}")
        return None

    def json(self, defs: dict[str, Json]) -> Json:
        forms = [*self.forms.values(), *([self.otherwise] if self.otherwise else [])]
        return {"anyOf": [form.json(defs) for form in forms]}


@dataclass(frozen=True, slots=True)
class Choice(Shape[T]):
    """One shape a kind of node; None where that kind is not allowed."""

    wanted: str
    scalar: Shape[T] | None = None
    items: Shape[T] | None = None
    mapping: Shape[T] | None = None

    def read(self, node: Node, faults: Faults) -> T | None:
        match node:
            case ScalarNode():
                shape = self.scalar
            case ListNode():
                shape = self.items
            case MapNode():
                shape = self.mapping
        if shape is None:
            self.refuse(node, faults)
            return None
        return shape.read(node, faults)

    def json(self, defs: dict[str, Json]) -> Json:
        shapes = (self.scalar, self.items, self.mapping)
        return {"anyOf": [shape.json(defs) for shape in shapes if shape is not None]}


@dataclass(frozen=True, slots=True)
class Made(Shape[T], Generic[T, K]):
    """``inner``, and then a draft of another type made from what it read."""

    inner: Shape[K]
    make: Callable[[Mark, K], T]

    @property
    def wanted(self) -> str:  # type: ignore[override]
        return self.inner.wanted

    def read(self, node: Node, faults: Faults) -> T | None:
        read = self.inner.read(node, faults)
        return None if read is None else self.make(node.mark, read)

    def json(self, defs: dict[str, Json]) -> Json:
        return self.inner.json(defs)
