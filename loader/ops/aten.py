"""ATen's reductions, overload by overload, as calls of ours.

An adapter gets our function and the arguments of ATen's operator, without those that
have their default value, and returns what the operator returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]
Adapter = Callable[..., Any]


def _whole(function: Function, self: torch.Tensor, *, dtype: Any = None, out: Any = None) -> Any:
    return function(self, None, False, dtype=dtype, out=out)


def _along(
    function: Function,
    self: torch.Tensor,
    dim: Any,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    return function(self, dim, keepdim, dtype=dtype, out=out)


def _plain(
    function: Function, self: torch.Tensor, dim: Any = None, keepdim: bool = False, *, out: Any = None
) -> Any:
    return function(self, dim, keepdim, out=out)


def _listed(
    function: Function, self: torch.Tensor, dim: Any = (), keepdim: bool = False, *, out: Any = None
) -> Any:
    return function(self, dim, keepdim, out=out)


def _pair(
    function: Function, self: torch.Tensor, dim: int, keepdim: bool = False, **outs: torch.Tensor
) -> Any:
    # The names differ between max and min; values come first in both.
    found = function(self, dim, keepdim, out=tuple(outs.values()) or None)
    return tuple(found)


_TRUTH: dict[str, Adapter] = {
    "{}": _plain,
    "{}.dim": _plain,
    "{}.dims": _plain,
    "{}.out": _plain,
    "{}.dims_out": _plain,
    "{}.all_out": _plain,
}
_ORDER: dict[str, Adapter] = {
    "{}": _plain,
    "{}.unary_out": _plain,
    "{}.dim": _pair,
    "{}.dim_{}": _pair,
}


def _named(name: str, overloads: dict[str, Adapter]) -> dict[str, Adapter]:
    return {overload.replace("{}", name): adapter for overload, adapter in overloads.items()}


OVERLOADS: dict[str, dict[str, Adapter]] = {
    "sum": {"sum": _whole, "sum.out": _whole, "sum.dim_IntList": _along, "sum.IntList_out": _along},
    "mean": {"mean": _whole, "mean.dtype_out": _whole, "mean.dim": _along, "mean.out": _along},
    "prod": {"prod": _whole, "prod.out": _whole, "prod.dim_int": _along, "prod.int_out": _along},
    "amax": _named("amax", {"{}": _listed, "{}.out": _listed}),
    "amin": _named("amin", {"{}": _listed, "{}.out": _listed}),
    "max": _named("max", _ORDER),
    "min": _named("min", _ORDER),
    "argmax": _named("argmax", {"{}": _plain, "{}.out": _plain}),
    "argmin": _named("argmin", {"{}": _plain, "{}.out": _plain}),
    "any": _named("any", _TRUTH),
    "all": _named("all", _TRUTH),
}
"""For each of our functions the operators of ATen that torch's function of its name reaches."""
