"""The scalars of a spec: what each accepts, how it refuses, and its JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from aot.build.drafts import Item
from aot.build.shapes import Json, Leaf, Refused
from aot.build.yamlnodes import ScalarNode, shown
from aot.dtypes import ALIASES, DTYPES, parse_dtype
from aot.errors import TargetError, UsageError, nearest
from aot.expr import Expr, ExprError
from aot.spec import Const
from aot.target import KNOWN_TARGETS, Target

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_AXIS = re.compile(rf"\$({IDENTIFIER})", re.ASCII)
INT_TYPES = tuple(d.name for d in DTYPES.values() if d.kind in ("int", "uint", "bool") and d.scalar)
FLOAT_TYPES = tuple(d.name for d in DTYPES.values() if d.kind == "float" and d.scalar)


def string(node: ScalarNode, *, letters: bool = False) -> str:
    """Return a string's text. ``letters``: y and n are names here, and not a way to say true and false."""
    if node.kind == "string" or (letters and node.kind == "letter"):
        return node.text
    quoted = "" if node.kind == "nothing" else f'; quote it ("{node.text[:60]}")'
    raise Refused(quoted)


def word(wanted: str, pattern: str, longest: int = 200) -> Leaf[str]:
    """A string that ``pattern`` matches whole."""
    compiled = re.compile(pattern, re.ASCII)

    def accept(node: ScalarNode) -> str:
        if not compiled.fullmatch(node.text):
            raise Refused
        text = string(node, letters=True)
        if len(text) > longest:
            raise Refused(message=f"found {len(text)} characters, wanted at most {longest}")
        return text

    return Leaf(wanted, accept, {"type": "string", "pattern": f"^{pattern}$", "maxLength": longest})


def free_text(wanted: str) -> Leaf[str]:
    """Any string that is not empty."""

    def accept(node: ScalarNode) -> str:
        if not (text := string(node)).strip():
            raise Refused
        return text

    return Leaf(wanted, accept, {"type": "string", "minLength": 1})


def integer(wanted: str, allowed: range) -> Leaf[int]:
    """An integer in ``allowed``, which has step 1."""

    def accept(node: ScalarNode) -> int:
        if node.kind != "int" or not isinstance(node.value, int) or node.value not in allowed:
            raise Refused
        return node.value

    schema: Json = {"type": "integer", "minimum": allowed.start, "maximum": allowed.stop - 1}
    return Leaf(wanted, accept, schema)


def one_of(wanted: str, values: Iterable[Const]) -> Leaf[Const]:
    """One of a few values, each in its own type."""
    listed = tuple(values)

    def accept(node: ScalarNode) -> Const:
        if node.kind in ("string", "int", "bool", "null"):
            for value in listed:
                if type(value) is type(node.value) and value == node.value:
                    return value
        raise Refused(nearest(node.text, [v for v in listed if isinstance(v, str)]))

    return Leaf(wanted, accept, {"enum": list(listed)})


def dtype(wanted: str, names: tuple[str, ...] | None = None) -> Leaf[str]:
    """A dtype's name, returned as torch's, or ``$axis``. ``names``: the only ones that will do."""
    allowed = names if names is not None else tuple(DTYPES)

    def accept(node: ScalarNode) -> str:
        text = string(node)
        if _AXIS.fullmatch(text):
            return text
        return canonical_dtype(text, allowed)

    aliases = [alias for alias, name in ALIASES.items() if name in allowed]
    axis: Json = {"type": "string", "pattern": rf"^\${IDENTIFIER}$"}
    return Leaf(wanted, accept, {"anyOf": [{"enum": [*allowed, *aliases]}, axis]})


def canonical_dtype(text: str, allowed: tuple[str, ...]) -> str:
    """Return torch's name of the dtype ``text``, one of ``allowed``. Raises ``Refused`` with the nearest."""
    try:
        name = parse_dtype(text).name
    except UsageError:
        name = ""
    if name in allowed:
        return name
    aliases = [alias for alias, known in ALIASES.items() if known in allowed]
    raise Refused(
        message=f"found dtype {shown(text)}, wanted one of {', '.join(allowed)}"
        + nearest(text, [*allowed, *aliases])
    )


def _target(node: ScalarNode) -> Target:
    # 90 and 9.0 are numbers to YAML: the text is what was meant.
    try:
        return Target.parse(node.text)
    except TargetError as error:
        raise Refused(message=str(error)) from None


TARGET: Leaf[Target] = Leaf(
    f"a target such as {KNOWN_TARGETS[-1]}",
    _target,
    {
        "anyOf": [
            {"enum": list(KNOWN_TARGETS)},
            {"type": "string", "pattern": r"^([1-9][0-9]{1,2}|[1-9][0-9]?\.[0-9])a?$"},
            {"type": "number"},
        ]
    },
)


def parse_expr(node: ScalarNode, hint: str = "") -> Expr:
    """Read an integer or a string as an expression. Raises ``Refused`` at the faulty character."""
    if node.kind != "int":
        string(node, letters=True)
    try:
        return Expr.parse(node.text)
    except ExprError as error:
        what = f"{error} in the expression {shown(node.text)}"
        if not node.quoted and node.text.count("(") > node.text.count(")"):
            hint = "; quote an expression that holds a comma"
        raise Refused(message=what + hint, column=error.column) from None


EXPR: Leaf[Expr] = Leaf("an expression", parse_expr, {"type": ["string", "integer"]})


def _constexpr(node: ScalarNode) -> Item:
    if node.kind in ("int", "float", "bool", "null"):
        return node.value
    if node.kind == "nothing":
        raise Refused
    hint = f'; write {{text: "{node.text}"}} for a string' if node.text.isidentifier() else ""
    if node.kind == "trap":
        raise Refused(hint)
    return parse_expr(node, "; write {text: …} for a string")


CONSTEXPR: Leaf[Item] = Leaf(
    "a number, true, false, null or an expression",
    _constexpr,
    {"type": ["integer", "number", "boolean", "null", "string"]},
)


def count(wanted: str, allowed: Callable[[int], bool], null: bool = False) -> Leaf[Item]:
    """An integer that ``allowed`` takes, or an expression; ``null`` too where that is set."""

    def accept(node: ScalarNode) -> Item:
        if null and node.kind == "null":
            return None
        if node.kind == "int" and isinstance(node.value, int):
            if not allowed(node.value):
                raise Refused
            return node.value
        if node.kind in ("string", "letter"):
            return parse_expr(node)
        raise Refused

    kinds = ["integer", "string", "null"] if null else ["integer", "string"]
    return Leaf(wanted, accept, {"type": kinds, "minimum": 1})


def boolean(wanted: str = "true or false") -> Leaf[bool]:
    """``true`` or ``false``, in exactly these letters."""

    def accept(node: ScalarNode) -> bool:
        if not isinstance(node.value, bool):
            raise Refused
        return node.value

    return Leaf(wanted, accept, {"type": "boolean"})


def axis_value(node: ScalarNode) -> ScalarNode:
    if node.kind not in ("string", "int", "float", "bool"):
        string(node)
    if node.kind == "string" and node.text.startswith("$") and not _AXIS.fullmatch(node.text):
        raise Refused(message=f"found {shown(node.text)}, wanted '$' and the name of an earlier axis")
    return node


AXIS_VALUE: Leaf[ScalarNode] = Leaf(
    "a string, a number, true, false or $axis",
    axis_value,
    {"type": ["string", "integer", "number", "boolean"]},
)

# A key of a table or a value of a rule: what it means is the axis' to say.
RAW: Leaf[ScalarNode] = Leaf(
    "a value of the axis", lambda node: node, {"type": ["string", "integer", "number", "boolean"]}
)
