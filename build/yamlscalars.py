"""What an unquoted YAML scalar means in a spec, so that nothing is read behind the writer's back.

YAML 1.1 turns ``no`` into false, ``010`` into 8, ``1_000`` into 1000 and ``1:30`` into 90,
and leaves ``1e3`` a string. Here a scalar is ``true`` or ``false``, ``null``, a decimal
integer, a decimal number, or a string; every spelling that YAML 1.1 or 1.2 reads as
something else than its letters is a *trap*, which no part of a spec accepts.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, Literal

import yaml
from yaml.resolver import Resolver

from aot.spec import Const

Kind = Literal["string", "int", "float", "bool", "null", "nothing", "letter", "trap"]

_INT = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NUMBER_LIKE = re.compile(
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9_]+)(?:[eE][-+]?[0-9_]*)?|[-+]?0[xXoObB][0-9A-Fa-f_]+",
    re.ASCII,
)
_DIGITS = re.compile(r"[-+]?\d[\d_.,]*")
_BOOLS = {"true": True, "false": False}
_NAMED = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
_STR_TAG = "tag:yaml.org,2002:str"
_LARGEST_DIGITS = 19


# PyYAML's own table of what YAML 1.1 makes of a plain scalar.
_YAML_1_1: Any = Resolver()


@lru_cache(maxsize=4096)
def resolve(text: str) -> tuple[Kind, Const, str]:
    """Return (kind, value, note) of an unquoted scalar.

    ``letter`` is ``y`` or ``n``: a good name of a parameter, but no value. ``note`` says
    of a ``letter`` or ``trap`` how other readers understand it, such as ``which YAML 1.1
    reads as false``; the value of these two, and of ``nothing``, is None.
    """
    if text == "":
        return "nothing", None, ""
    if text in _BOOLS:
        return "bool", _BOOLS[text], ""
    if text == "null":
        return "null", None, ""
    if text in ("y", "Y", "n", "N"):
        return "letter", None, f"which YAML 1.1 reads as {'true' if text in 'yY' else 'false'}"
    if text.lower() in _NAMED:
        return "trap", None, f"which YAML 1.1 reads as {_NAMED[text.lower()]}"
    if _INT.fullmatch(text):
        if len(text.lstrip("-")) > _LARGEST_DIGITS:
            return "trap", None, f"which has more than {_LARGEST_DIGITS} digits"
        return "int", int(text), ""
    if _FLOAT.fullmatch(text):
        if not math.isfinite(value := float(text)):
            return "trap", None, "which is too large for a 64-bit float"
        return "float", value, ""
    return _text_or_trap(text)


def _text_or_trap(text: str) -> tuple[Kind, Const, str]:
    if not text.isascii() and _DIGITS.fullmatch(text):
        return "trap", None, "which has digits other than 0 to 9"
    tag: str = _YAML_1_1.resolve(yaml.ScalarNode, text, (True, False))
    if tag == _STR_TAG and not _NUMBER_LIKE.fullmatch(text):
        return "string", text, ""
    what = {"null": "null", "timestamp": "a date", "merge": "a merge key", "value": "a default key"}
    known = what.get(tag.rsplit(":", 1)[1])
    if known is None:
        known = _number(text)
    return "trap", None, f"which YAML 1.1 reads as {known}"


def _number(text: str) -> str:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return "a number"
    return f"the string {value!r}" if isinstance(value, str) else str(value)[:40]
