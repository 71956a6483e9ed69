"""The part of the spec language that is about values and parameters; ``aot.build.language`` has the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.build.drafts import (
    At,
    ConstexprDraft,
    Item,
    ParamDraft,
    ParamsDraft,
    PointerDraft,
    ScalarDraft,
    ValueDraft,
)
from aot.build.forms import TableOf, TextForm
from aot.build.leaves import CONSTEXPR, FLOAT_TYPES, IDENTIFIER, INT_TYPES, dtype, free_text, one_of, word
from aot.build.shapes import ByKey, Choice, Field, Leaf, ListOf, Made, MapOf, Named, Record, Shape
from aot.build.yamlnodes import Mark, ScalarNode, brief
from aot.dtypes import Storage

PARAM_NAME = word("a parameter's name", IDENTIFIER)
TABLE_BY = word("an axis' name or target", IDENTIFIER)


def identity(at: At[Any]) -> tuple[Mark, object, str]:
    """What makes two items of a list the same, for ``ListOf``."""
    value = at.value
    text = brief(value.text) if isinstance(value, ScalarNode) else "any" if value is None else str(value)
    key = value.key if isinstance(value, ScalarNode) else (type(value), value)
    return at.mark, key, text


_TEXT = TextForm("{text: …} alone", "text", free_text("a string"))
_DTYPE_FORM = TextForm("{dtype: …} alone", "dtype", dtype("a dtype or $axis"))
_RESULT = Choice(
    "a number, true, false, null, an expression, {text: …} or {dtype: …}",
    scalar=CONSTEXPR,
    mapping=ByKey("a value", {"text": _TEXT, "dtype": _DTYPE_FORM}),
)
CONSTEXPR_VALUE: Shape[ValueDraft] = Named(
    "constexpr",
    Choice(
        "a number, true, false, null, an expression, a table {by: …}, {text: …} or {dtype: …}",
        scalar=CONSTEXPR,
        mapping=ByKey(
            "a value",
            {"by": TableOf("a table", TABLE_BY, _RESULT), "text": _TEXT, "dtype": _DTYPE_FORM},
        ),
    ),
)


def count_or_table(wanted: str, leaf: Leaf[Item], row: Leaf[Item] | None = None) -> Shape[ValueDraft]:
    """A number of launch options, or a table of it, whose rows may be stricter."""
    return Choice(wanted, scalar=leaf, mapping=TableOf("a table {by: …}", TABLE_BY, row or leaf))


_CLAIM_DOC = "Variants to build, one a claim: a list, one of them, or a table."


def _claims(wanted: str, leaf: Leaf[Item]) -> Shape[Any]:
    claims: ListOf[At[Item]] = ListOf(f"a list of {wanted}", leaf, identity=identity, single=True)
    return Choice(
        f"{wanted}, a list of them or a table {{by: …}}",
        scalar=claims,
        items=claims,
        mapping=TableOf("a table {by: …}", TABLE_BY, leaf),
    )


def _pointer(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> ParamDraft:
    storage: Storage = got["storage"].value if got["storage"] else "native"
    return PointerDraft(dtype=got["pointer"], align=got["align"], storage=storage)


def _int(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> ParamDraft:
    return ScalarDraft(kind="int", type=got["int"], specialize=got["specialize"])


def _float(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> ParamDraft:
    return ScalarDraft(kind="float", type=got["float"], specialize=None)


def _constexpr(mark: Mark, got: Mapping[str, Any], bad: frozenset[str]) -> ParamDraft:
    return ConstexprDraft(value=got["constexpr"])


ALIGN = one_of("16 or 1", (16, 1))
SPECIALIZE = one_of("1, 16 or any", (1, 16, "any"))
_POINTER = Record(
    "a pointer parameter",
    (
        Field("pointer", dtype("a dtype or $axis"), "The dtype of the tensor's elements.", required=True),
        Field("align", _claims("16 or 1", ALIGN), f"The address is a multiple of it. {_CLAIM_DOC}"),
        Field(
            "storage",
            one_of("native, bits or auto", ("native", "bits", "auto")),
            "How the kernel sees the elements: Triton's own type, unsigned integers, or the first there is.",
        ),
    ),
    _pointer,
)
_INT = Record(
    "an int parameter",
    (
        Field("int", dtype(f"one of {', '.join(INT_TYPES)} or $axis", INT_TYPES), "Its type.", required=True),
        Field("specialize", _claims("1, 16 or any", SPECIALIZE), f"The value is it. {_CLAIM_DOC}"),
    ),
    _int,
)
_FLOAT = Record(
    "a float parameter",
    (
        Field(
            "float",
            dtype(f"one of {', '.join(FLOAT_TYPES)} or $axis", FLOAT_TYPES),
            "Its type.",
            required=True,
        ),
    ),
    _float,
)
_CONSTEXPR = Record(
    "a constexpr parameter",
    (Field("constexpr", CONSTEXPR_VALUE, "The value that is compiled in.", required=True),),
    _constexpr,
)
_PARAMS = MapOf(
    "a mapping of the kernel's parameters",
    PARAM_NAME,
    Named(
        "param",
        ByKey(
            "a parameter",
            {"pointer": _POINTER, "int": _INT, "float": _FLOAT, "constexpr": _CONSTEXPR},
        ),
    ),
)
PARAMS: Shape[At[ParamsDraft]] = Made(_PARAMS, lambda mark, params: At(params, mark))
