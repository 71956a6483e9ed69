"""Small changes to a YAML text that leave every other byte as its writer left it.

Each function takes the text and a node of :func:`compose`, and returns the new text. The
positions of all nodes are stale after a change: compose again.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from aot.build.yamlscalars import resolve
from aot.spec import Const

Node = yaml.ScalarNode | yaml.SequenceNode | yaml.MappingNode

# Plain words that stay one word in block and in flow style.
_PLAIN = re.compile(r"[A-Za-z0-9_$.+-][A-Za-z0-9_$.+-]*")
_BREAK = re.compile("\r\n|\n|\r")


class EditError(Exception):
    """A text that cannot be changed in place; the message says what is in the way."""


def compose(text: str) -> Node:
    """Return the root node. The text must be one that ``read_tree`` reads."""
    # The loader in Python, because libyaml's marks count bytes in some versions.
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise EditError("found no mapping, wanted a spec")
    return root


def value_of(node: Node, key: str) -> Node | None:
    """The value of ``key`` in a mapping, where it is written there (and not merged in)."""
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def items_of(node: Node) -> list[Node]:
    """The items of a list; a node that is none stands for a list of itself."""
    return list(node.value) if isinstance(node, yaml.SequenceNode) else [node]


def source_of(text: str, node: Node) -> str:
    """The text of a scalar or of a node in flow style."""
    return text[node.start_mark.index : _end(node)]


def replace(text: str, node: Node, new: str) -> str:
    """Put ``new`` in the place of a node, which may be a whole block."""
    return text[: node.start_mark.index] + new + text[_end(node) :]


def append_item(text: str, node: Node, *items: str) -> str:
    """Add ``items`` to a list. A node that is no list becomes one, in flow style."""
    if not isinstance(node, yaml.SequenceNode):
        return replace(text, node, f"[{', '.join([source_of(text, node), *items])}]")
    if not node.value:
        return replace(text, node, f"[{', '.join(items)}]")
    if node.flow_style:
        at = _end(node.value[-1])
        return "".join([text[:at], *(f", {item}" for item in items), text[at:]])
    return _new_line(text, _end(node), node.start_mark.column, *(f"- {item}" for item in items))


def append_key(text: str, node: Node, key: str, value: str, *, after: str | None = None) -> str:
    """Add ``key: value`` to a mapping, at its end or behind the key ``after``."""
    if not isinstance(node, yaml.MappingNode):
        raise EditError(f"found no mapping for {key!r}")
    if not node.value:
        return replace(text, node, f"{{{key}: {value}}}")
    before = value_of(node, after) if after is not None else None
    at = _end(before if before is not None else node.value[-1][1])
    if node.flow_style:
        return f"{text[:at]}, {key}: {value}{text[at:]}"
    return _new_line(text, at, node.start_mark.column, f"{key}: {value}")


def append_list(text: str, node: Node, key: str, *items: str) -> str:
    """Add ``key`` with a list to the end of a mapping."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise EditError(f"found no mapping for {key!r}")
    at = _end(node.value[-1][1])
    if node.flow_style:
        return f"{text[:at]}, {key}: [{', '.join(items)}]{text[at:]}"
    column = node.start_mark.column
    return _new_line(text, at, column, f"{key}:", *(f"- {item}" for item in items))


def insert_before(text: str, node: Node, item: Node, new: str) -> str:
    """Add ``new`` to a list, before one of its items."""
    at = item.start_mark.index
    if isinstance(node, yaml.SequenceNode) and node.flow_style:
        return f"{text[:at]}{new}, {text[at:]}"
    dash = text.rindex("-", 0, at)
    return f"{text[:dash]}- {new}{_ending(text)}{' ' * node.start_mark.column}{text[dash:]}"


def scalar(value: Const) -> str:
    """Write a value so that a spec reads it back as the same: in quotes where a bare word would mislead."""
    if isinstance(value, str):
        bare = (
            _PLAIN.fullmatch(value) and resolve(value)[0] == "string" and value not in ("any", "else", "by")
        )
        quoted = json.dumps(value, ensure_ascii=False)
        return value if bare else "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return json.dumps(value)


def _end(node: Node) -> int:
    """Where a node's own text ends. A block's mark is where the next token starts, comments passed."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    end: int = node.end_mark.index
    return end


def _new_line(text: str, at: int, column: int, *lines: str) -> str:
    """Insert lines behind the one that ``at`` is in, with its comment."""
    found = _BREAK.search(text, at)
    end = found.start() if found else len(text)
    added = "".join(f"{_ending(text)}{' ' * column}{line}" for line in lines)
    return text[:end] + added + text[end:]


def _ending(text: str) -> str:
    found = _BREAK.search(text)
    return found.group() if found else "\n"
