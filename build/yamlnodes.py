"""A YAML text as a tree of nodes that know their line and column, and the faults found in it.

Built on the events of PyYAML's parser, not on its loader: no value is made from a tag, an
alias is the node that it repeats, and what a scalar means is decided by
``aot.build.yamlscalars`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from aot.build.yamlscalars import Kind, resolve
from aot.spec import Const

MAX_BYTES = 64 * 2**20
# Nothing in a spec is nested deeper than twelve levels.
_MAX_DEPTH = 50
# Aliases may repeat this many nodes in all. A file without aliases has no limit but its size.
_MAX_REPEATED = 100_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile(
    "[^\\x09\\x0a\\x0d\\x20-\\x7e\\x85\\xa0-\\ud7ff\\ue000-\\ufefe\\uff00-\\ufffd\\U00010000-\\U0010ffff]"
)


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in a file; both count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, eq=False)
class ScalarNode:
    """``text`` as written, without quotes; ``value`` what it means; ``note`` why a trap is one."""

    mark: Mark
    text: str
    quoted: bool
    kind: Kind
    value: Const
    note: str

    @property
    def key(self) -> tuple[str, Const]:
        """What makes two scalars the same: 1, 1.0, true and "1" are four different ones."""
        return (self.kind, self.text if self.kind in ("letter", "trap") else self.value)


@dataclass(frozen=True, slots=True, eq=False)
class ListNode:
    mark: Mark
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MapNode:
    """``entries`` in the written order, each key once, merge keys already merged in."""

    mark: Mark
    entries: tuple[tuple[ScalarNode, Node], ...]

    def get(self, key: str) -> Node | None:
        """Return the value of the string ``key``, or None."""
        return next((value for name, value in self.entries if name.text == key), None)


Node = ScalarNode | ListNode | MapNode


@dataclass(slots=True)
class Faults:
    """The faults of one file. ``file`` is its path as the user gave it."""

    file: str
    _found: set[tuple[Mark, str]] = field(default_factory=set)

    def add(self, mark: Mark, message: str) -> None:
        """Record a fault once, however often it is met."""
        self._found.add((mark, message))

    def __len__(self) -> int:
        return len(self._found)

    def lines(self) -> Iterator[str]:
        """Yield ``file:line:column: message`` in the order of the file."""
        for mark, message in sorted(self._found):
            yield f"{self.file}:{mark.line}:{mark.column}: {message}"


def shown(text: str) -> str:
    """Quote a user's text for a message: one line, cut when long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def brief(text: str) -> str:
    """Write a user's text bare where that is short and on one line, and quoted elsewhere."""
    return text if 0 < len(text) <= 60 and text.isprintable() else shown(text)


def describe(node: Node, *, note: bool = True) -> str:
    """Say what a node is, without printing what is inside it; ``note``: and how YAML 1.1 reads a trap."""
    match node:
        case MapNode():
            return "a mapping"
        case ListNode():
            return "a list"
        case ScalarNode(kind="nothing"):
            return "nothing"
        case ScalarNode(kind="string"):
            return shown(node.text)
    return f"{brief(node.text)}, {node.note}" if note and node.note else brief(node.text)


def read_tree(data: bytes, faults: Faults) -> Node | None:
    """Parse one YAML document from the bytes of a file; None where it has none that can be read.

    Every fault is added to ``faults``. Two keys that are the same in a mapping are a fault,
    and the first stays.
    """
    text = _decode(data, faults)
    if text is None:
        return None
    if bad := _UNPRINTABLE.search(text):
        faults.add(
            _mark_of(text[: bad.start()]),
            f"found the character U+{ord(bad.group()):04X}, wanted printable text",
        )
        return None
    try:
        return _Composer(text, faults).document()
    except _Stop as stop:
        faults.add(stop.mark, stop.message)
    except yaml.MarkedYAMLError as error:
        faults.add(*_syntax_fault(error, text))
    except yaml.YAMLError as error:
        faults.add(Mark(1, 1), f"found YAML that does not parse ({error}), wanted a spec")
    return None


def _decode(data: bytes, faults: Faults) -> str | None:
    if len(data) > MAX_BYTES:
        faults.add(Mark(1, 1), f"found {len(data)} bytes, wanted at most {MAX_BYTES}")
    elif data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:4]:
        faults.add(Mark(1, 1), "found UTF-16 or UTF-32, wanted UTF-8; save the file as UTF-8")
    else:
        try:
            return data.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            mark = _mark_of(data[: error.start].decode("utf-8").removeprefix("\ufeff"))
            byte = data[error.start]
            faults.add(mark, f"found the byte 0x{byte:02x}, wanted UTF-8; save the file as UTF-8")
    return None


def _mark_of(before: str) -> Mark:
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", before)
    return Mark(len(lines), len(lines[-1]) + 1)


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> tuple[Mark, str]:
    place = error.problem_mark or error.context_mark
    mark = Mark(place.line + 1, place.column + 1) if place else Mark(1, 1)
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", text)
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    if line[mark.column - 1 : mark.column] == "\t":
        return mark, "found a tab, wanted spaces; YAML is indented with spaces only"
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return mark, f"found YAML that does not parse ({what}), wanted a spec"


class _Stop(Exception):
    """A fault after which the rest of the file has no meaning."""

    def __init__(self, mark: Mark, message: str) -> None:
        self.mark = mark
        self.message = message


class _Composer:
    """Events to nodes. Each method returns a node and its size: its nodes, aliases followed."""

    def __init__(self, text: str, faults: Faults) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.faults = faults
        # None while the anchored node is still being read: an alias then would be a loop.
        self.anchors: dict[str, tuple[Node, int] | None] = {}
        self.repeated = 0

    def document(self) -> Node | None:
        next(self.events)
        start = next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            self.faults.add(Mark(1, 1), "found an empty file, wanted a spec")
            return None
        node, _ = self.node(next(self.events), 0)
        next(self.events)
        after = next(self.events)
        if isinstance(after, yaml.DocumentStartEvent):
            raise _Stop(_mark(after), "found a second YAML document, wanted one document a file")
        if isinstance(node, ScalarNode) and node.kind == "nothing":
            self.faults.add(Mark(1, 1), "found an empty file, wanted a spec")
            return None
        return node

    def node(self, event: Any, depth: int) -> tuple[Node, int]:
        mark = _mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event.anchor, mark)
        if event.tag is not None:
            raise _Stop(mark, f"found the tag {shown(event.tag)}, wanted plain YAML without tags")
        if depth > _MAX_DEPTH:
            raise _Stop(mark, f"found more than {_MAX_DEPTH} nested levels, wanted a spec")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        made: tuple[Node, int]
        if isinstance(event, yaml.ScalarEvent):
            made = _scalar(event, mark), 1
        elif isinstance(event, yaml.SequenceStartEvent):
            made = self.sequence(mark, depth)
        else:
            made = self.mapping(mark, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = made
        return made

    def alias(self, name: Any, mark: Mark) -> tuple[Node, int]:
        if name not in self.anchors:
            raise _Stop(mark, f"found the alias {shown('*' + name)}, wanted one with an anchor before it")
        made = self.anchors[name]
        if made is None:
            raise _Stop(mark, f"found the alias {shown('*' + name)} inside its own anchor, wanted no loop")
        self.repeated += made[1]
        if self.repeated > _MAX_REPEATED:
            raise _Stop(
                mark,
                f"found aliases that repeat {self.repeated} values up to here, "
                f"wanted at most {_MAX_REPEATED}; write the values out",
            )
        return made

    def sequence(self, mark: Mark, depth: int) -> tuple[Node, int]:
        items: list[Node] = []
        size = 1
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            item, count = self.node(event, depth + 1)
            items.append(item)
            size += count
        return ListNode(mark, tuple(items)), size

    def mapping(self, mark: Mark, depth: int) -> tuple[Node, int]:
        own: dict[tuple[str, Const], tuple[ScalarNode, Node]] = {}
        merges: list[Node] = []
        size = 1
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key, key_size = self.node(event, depth + 1)
            value, value_size = self.node(next(self.events), depth + 1)
            size += key_size + value_size
            if not isinstance(key, ScalarNode):
                self.faults.add(key.mark, f"found {describe(key)} as a key, wanted a single value")
            elif key.text == "<<" and not key.quoted:
                merges.append(value)
            elif (first := own.setdefault(key.key, (key, value)))[0] is not key:
                self.faults.add(
                    key.mark,
                    f"found the key {shown(key.text)} a second time, "
                    f"wanted it once (first on line {first[0].mark.line})",
                )
        merged: dict[tuple[str, Const], tuple[ScalarNode, Node]] = {}
        for source in merges:
            for part in source.items if isinstance(source, ListNode) else (source,):
                if not isinstance(part, MapNode):
                    self.faults.add(part.mark, f"found {describe(part)} after '<<', wanted a mapping")
                    continue
                for entry in part.entries:
                    merged.setdefault(entry[0].key, entry)
        return MapNode(mark, tuple((merged | own).values())), size


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _scalar(event: yaml.ScalarEvent, mark: Mark) -> ScalarNode:
    text: str = event.value
    if not event.style:
        kind, value, note = resolve(text)
        return ScalarNode(mark, text, False, kind, value, note)
    return ScalarNode(mark, text, True, "string", text, "")
