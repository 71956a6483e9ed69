"""The expression language: its values, its one printed form, and its refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.expr import FUNCTIONS, Expr, ExprError

NAMES = st.from_regex(r"\$?[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in FUNCTIONS
)
LEAVES = st.one_of(
    st.integers(min_value=0, max_value=2**63 - 1).map(lambda value: Expr("int", value=value)),
    NAMES.map(lambda name: Expr("name", name=name)),
)


def _nodes(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pairs = st.tuples(children, children)
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "//", "cdiv", "min", "max"]), pairs).map(
            lambda made: Expr(made[0], args=made[1])
        ),
        children.map(lambda arg: Expr("neg", args=(arg,))),
        children.map(lambda arg: Expr("next_power_of_2", args=(arg,))),
        st.lists(children, min_size=2, max_size=4).map(lambda args: Expr("max", args=tuple(args))),
    )


TREES = st.recursive(LEAVES, _nodes, max_leaves=12)


@given(TREES)
def test_what_is_printed_is_parsed_back(expr: Expr) -> None:
    assert Expr.parse(str(expr)) == expr
    assert hash(Expr.parse(str(expr))) == hash(expr)


def tried(make: Callable[[], object]) -> object:
    """What ``make`` returns, or the text and column of its ``ExprError``."""
    try:
        return make()
    except ExprError as error:
        return str(error), error.column


@given(st.text(alphabet="ab1()+-*/,$ min", max_size=40))
def test_what_is_parsed_prints_to_its_normal_form(text: str) -> None:
    expr = tried(lambda: Expr.parse(text))
    if isinstance(expr, Expr):
        assert Expr.parse(str(expr)) == expr
        assert str(Expr.parse(str(expr))) == str(expr)
    else:
        assert isinstance(expr, tuple)
        assert 0 <= expr[1] <= len(text)


@given(st.text())
def test_no_text_makes_parsing_fail_otherwise(text: str) -> None:
    assert tried(lambda: Expr.parse(text))


@given(TREES, st.integers(min_value=-100, max_value=100))
def test_the_printed_form_has_the_same_value(expr: Expr, value: int) -> None:
    values = dict.fromkeys(expr.names(), value)
    again = Expr.parse(str(expr))
    assert tried(lambda: again.evaluate(values)) == tried(lambda: expr.evaluate(values))


@pytest.mark.parametrize(
    ("text", "printed", "value"),
    [
        ("1+2*3", "1 + 2 * 3", 7),
        ("(1+2)*3", "(1 + 2) * 3", 9),
        ("10-3-2", "10 - 3 - 2", 5),
        ("10-(3-2)", "10 - (3 - 2)", 9),
        ("100//7//2", "100 // 7 // 2", 7),
        ("100//(7//2)", "100 // (7 // 2)", 33),
        ("2*(3//2)", "2 * (3 // 2)", 2),
        ("-7//2", "-7 // 2", -4),
        ("-(7//2)", "-(7 // 2)", -3),
        ("--5", "--5", 5),
        ("2--5", "2 - -5", 7),
        ("cdiv(7,2)", "cdiv(7, 2)", 4),
        ("cdiv(-7, 2)", "cdiv(-7, 2)", -3),
        ("cdiv(8, 2)", "cdiv(8, 2)", 4),
        ("next_power_of_2(1)", "next_power_of_2(1)", 1),
        ("next_power_of_2(1025)", "next_power_of_2(1025)", 2048),
        ("next_power_of_2(2048)", "next_power_of_2(2048)", 2048),
        ("next_power_of_2(0)", "next_power_of_2(0)", 1),
        ("min(3, 1, 2) + max(3, 1, 2)", "min(3, 1, 2) + max(3, 1, 2)", 4),
        (" $n * n ", "$n * n", 6),
        ("min", "min", 9),
    ],
)
def test_values(text: str, printed: str, value: int) -> None:
    expr = Expr.parse(text)
    assert str(expr) == printed
    assert expr.evaluate({"$n": 2, "n": 3, "min": 9}) == value


def test_names() -> None:
    assert Expr.parse("cdiv($n, BLOCK) * $n - m").names() == {"$n", "BLOCK", "m"}


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 0, "found the end, wanted a name, an integer or '('"),
        ("1 +", 3, "found the end, wanted a name, an integer or '('"),
        ("1 + * 2", 4, "found '*', wanted a name, an integer or '('"),
        ("1 2", 2, "found '2', wanted an operator or the end"),
        ("(1", 2, "found 'the end', wanted ')'"),
        ("(1 2)", 3, "found '2', wanted ')'"),
        ("1 / 2", 2, "found '/', wanted a name, an integer, an operator (+ - * //) or one of cdiv, "
         "next_power_of_2, min, max"),
        ("n ** 2", 3, "found '*', wanted a name, an integer or '('"),
        ("1.5", 1, "found '.', wanted a name, an integer, an operator (+ - * //) or one of cdiv, "
         "next_power_of_2, min, max"),
        ("__import__('os')", 11, "found \"'\", wanted a name, an integer, an operator (+ - * //) or one of "
         "cdiv, next_power_of_2, min, max"),
        ("a.b", 1, "found '.', wanted a name, an integer, an operator (+ - * //) or one of cdiv, "
         "next_power_of_2, min, max"),
        ("cdv(1, 2)", 0, "found function 'cdv', wanted one of cdiv, next_power_of_2, min, max; did you mean "
         "'cdiv'?"),
        ("cdiv(1)", 0, "found 1 arguments of cdiv, wanted 2"),
        ("1 + min(1)", 4, "found 1 arguments of min, wanted at least 2"),
        ("9223372036854775808", 0, "found 9223372036854775808, wanted an integer below 2**63"),
        ("n\u0661", 1, "found '\u0661', wanted a name, an integer, an operator (+ - * //) or one of cdiv, "
         "next_power_of_2, min, max"),
        ("(" * 60 + "1" + ")" * 60, 49, "nested deeper than 50 levels"),
        ("1" + " + 1" * 100, 400, "found a longer expression, wanted at most 200 names, numbers and signs"),
        ("n" * 300, 0, "found a longer expression, wanted at most 200 names, numbers and signs"),
    ],
)  # fmt: skip
def test_refusals(text: str, column: int, message: str) -> None:
    with pytest.raises(ExprError) as caught:
        Expr.parse(text)
    assert str(caught.value) == message
    assert caught.value.column == column


def test_the_longest_expressions_print_and_parse() -> None:
    for text in ("1" + " + 1" * 99, "-" * 49 + "n", "(" * 49 + "n" + ")" * 49, "1" + " - (1" * 45 + ")" * 45):
        expr = Expr.parse(text)
        assert Expr.parse(str(expr)) == expr
        assert isinstance(expr.evaluate({"n": 1}), int)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 // (n - n)", "'1 // (n - n)' divides by zero"),
        ("cdiv(n, 0)", "'cdiv(n, 0)' divides by zero"),
        ("n * 9223372036854775807", "'n * 9223372036854775807' is 18446744073709551614, wanted a value of at "
         "most 64 bits"),
        ("m + 1", "found 'm', wanted one of mm, n; did you mean 'mm'?"),
    ],
)  # fmt: skip
def test_values_that_there_are_not(text: str, message: str) -> None:
    with pytest.raises(ExprError) as caught:
        Expr.parse(text).evaluate({"n": 2, "mm": 1})
    assert str(caught.value) == message


def test_no_names_at_all() -> None:
    with pytest.raises(ExprError, match=r"^found 'n', wanted one of no name$"):
        Expr.parse("n").evaluate({})
