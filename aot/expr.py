"""The closed arithmetic language of specs: parsed once, never evaluated by Python.

Grammar (integers only; ``//`` is floor division and a zero divisor is an error)::

    sum     = product (("+" | "-") product)*
    product = unary (("*" | "//") unary)*
    unary   = "-" unary | atom
    atom    = integer | name | "$" name | function "(" sum ("," sum)* ")" | "(" sum ")"
    function: cdiv(a, b)  next_power_of_2(a)  min(a, b, …)  max(a, b, …)

``$name`` is an axis of the spec, ``name`` a run-time argument or a constexpr of the
kernel. An ``Expr`` prints in one normal form that parses back to an equal one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from aot.errors import UsageError, nearest

_TOKEN = re.compile(r"\s*(?:\d+|\$?[A-Za-z_]\w*|//|[-+*(),])", re.ASCII)
_LIMIT = 2**63
# Printing adds no token and no nesting, so that a printed expression is in the limits too.
_MAX_TOKENS = 200
_MAX_DEPTH = 50
_LONGEST_NAME = 201

FUNCTIONS: dict[str, tuple[int, int | None]] = {
    "cdiv": (2, 2),
    "next_power_of_2": (1, 1),
    "min": (2, None),
    "max": (2, None),
}


class ExprError(UsageError):
    """An expression that does not parse, or has no value. ``column`` counts from 0."""

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.column = column


class Expr(Struct, frozen=True):
    """One node: ``op`` is ``int``, ``name``, ``neg``, an operator, or a function's name."""

    op: str
    value: int = 0
    name: str = ""
    args: tuple[Expr, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Expr:
        """Read ``text``. Raises ``ExprError`` with the column of the fault."""
        return _Parser(text).parse()

    def __str__(self) -> str:
        if self.op == "int":
            return str(self.value)
        if self.op == "name":
            return self.name
        if self.op == "neg":
            return f"-{_wrap(self.args[0], 3)}"
        if self.op in FUNCTIONS:
            return f"{self.op}({', '.join(map(str, self.args))})"
        left, right = self.args
        strength = _STRENGTH[self.op]
        return f"{_wrap(left, strength)} {self.op} {_wrap(right, strength + 1)}"

    def names(self) -> frozenset[str]:
        """Every name that the value depends on, axes with their ``$``."""
        if self.op == "name":
            return frozenset((self.name,))
        return frozenset(name for arg in self.args for name in arg.names())

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the value, an int of at most 64 bits. Raises ``ExprError``."""
        if self.op == "int":
            return self.value
        if self.op == "name":
            try:
                return values[self.name]
            except KeyError:
                raise ExprError(
                    f"found {self.name!r}, wanted one of {', '.join(sorted(values)) or 'no name'}"
                    + nearest(self.name, values)
                ) from None
        value = self._apply([arg.evaluate(values) for arg in self.args])
        if not -_LIMIT <= value < _LIMIT:
            raise ExprError(f"'{self}' is {value}, wanted a value of at most 64 bits")
        return value

    def _apply(self, args: list[int]) -> int:
        if self.op in ("//", "cdiv") and args[1] == 0:
            raise ExprError(f"'{self}' divides by zero")
        match self.op:
            case "neg":
                return -args[0]
            case "+":
                return args[0] + args[1]
            case "-":
                return args[0] - args[1]
            case "*":
                return args[0] * args[1]
            case "//":
                return args[0] // args[1]
            case "cdiv":
                return -(-args[0] // args[1])
            case "next_power_of_2":
                return 1 << (args[0] - 1).bit_length() if args[0] > 0 else 1
            case "min":
                return min(args)
            case "max":
                return max(args)
        raise AssertionError(f"unknown operator {self.op}")


# How strongly each operator binds; everything else binds as an atom does.
_STRENGTH = {"+": 1, "-": 1, "*": 2, "//": 2, "neg": 3}


def _wrap(expr: Expr, strength: int) -> str:
    """Print ``expr``, in parentheses where it binds less than ``strength``."""
    return str(expr) if _STRENGTH.get(expr.op, 4) >= strength else f"({expr})"


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, int]] = []
        position, length = 0, len(text.rstrip())
        while position < length:
            match = _TOKEN.match(text, position)
            if not match:
                column = len(text) - len(text[position:].lstrip())
                raise ExprError(
                    f"found {text[column]!r}, wanted a name, an integer, an operator "
                    f"(+ - * //) or one of {', '.join(FUNCTIONS)}",
                    column,
                )
            token = match.group().strip()
            position = match.end()
            if len(self.tokens) == _MAX_TOKENS or len(token) > _LONGEST_NAME:
                raise ExprError(
                    f"found a longer expression, wanted at most {_MAX_TOKENS} names, numbers and signs",
                    position - len(token),
                )
            self.tokens.append((token, position - len(token)))
        self.end = len(text)
        self.index = 0
        self.depth = 0

    def parse(self) -> Expr:
        expr = self.sum()
        if self.index < len(self.tokens):
            token, column = self.tokens[self.index]
            raise ExprError(f"found {token!r}, wanted an operator or the end", column)
        return expr

    def peek(self) -> str:
        return self.tokens[self.index][0] if self.index < len(self.tokens) else ""

    def take(self) -> tuple[str, int]:
        if self.index >= len(self.tokens):
            raise ExprError("found the end, wanted a name, an integer or '('", self.end)
        self.index += 1
        return self.tokens[self.index - 1]

    def sum(self) -> Expr:
        left = self.product()
        while self.peek() in ("+", "-"):
            op, _ = self.take()
            left = Expr(op, args=(left, self.product()))
        return left

    def product(self) -> Expr:
        left = self.unary()
        while self.peek() in ("*", "//"):
            op, _ = self.take()
            left = Expr(op, args=(left, self.unary()))
        return left

    def unary(self) -> Expr:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ExprError(f"nested deeper than {_MAX_DEPTH} levels", self.tokens[self.index - 1][1])
        try:
            if self.peek() == "-":
                self.take()
                return Expr("neg", args=(self.unary(),))
            return self.atom()
        finally:
            self.depth -= 1

    def atom(self) -> Expr:
        token, column = self.take()
        if token.isdigit():
            if int(token) >= _LIMIT:
                raise ExprError(f"found {token[:30]}, wanted an integer below 2**63", column)
            return Expr("int", value=int(token))
        if token == "(":
            inner = self.sum()
            self.expect(")")
            return inner
        if token in ("+", "*", "//", ")", ",", "-"):
            raise ExprError(f"found {token!r}, wanted a name, an integer or '('", column)
        if self.peek() == "(":
            return self.call(token, column)
        return Expr("name", name=token)

    def call(self, name: str, column: int) -> Expr:
        if name not in FUNCTIONS:
            raise ExprError(
                f"found function {name!r}, wanted one of {', '.join(FUNCTIONS)}" + nearest(name, FUNCTIONS),
                column,
            )
        self.take()
        args = [self.sum()]
        while self.peek() == ",":
            self.take()
            args.append(self.sum())
        self.expect(")")
        low, high = FUNCTIONS[name]
        if len(args) < low or (high is not None and len(args) > high):
            wanted = str(low) if low == high else f"at least {low}"
            raise ExprError(f"found {len(args)} arguments of {name}, wanted {wanted}", column)
        return Expr(name, args=tuple(args))

    def expect(self, token: str) -> None:
        found, column = self.tokens[self.index] if self.index < len(self.tokens) else ("the end", self.end)
        if found != token:
            raise ExprError(f"found {found!r}, wanted {token!r}", column)
        self.index += 1
