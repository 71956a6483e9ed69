"""``aot.ops.<name>``: one function with torch's face, and the ways that a call can take.

A call like one before it is served from what was prepared for that (``direct``). Every other one
goes through torch's dispatcher where that must see it (``library``), and to torch itself after a
miss if that was asked for (``fallback``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from aot.errors import KernelMiss, NoBundleError
from aot.loader import fallback, stats
from aot.loader.ops import direct, library
from aot.loader.ops.reductions import Dim


def operation(name: str) -> Any:
    """Make ``aot.ops.<name>``: it is called as torch's function is, and has ``prepare``, and ``direct``,
    which asks neither for a gradient nor falls back. ``remembering`` is what serves its calls.
    """
    calls = direct.CALLS[name]
    counters = stats.op(name)

    def answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if library.needed(args, kwargs):
            return library.call(name, args, kwargs), None
        try:
            found = calls.answer(args, kwargs)
        except (KernelMiss, NoBundleError) as error:
            return fallback.serve_miss(name, args, kwargs, error), None
        counters.hit()
        return found

    run = direct.remembering(answer, guarded=True)
    found: Any = face(name, run)
    found.__name__ = found.__qualname__ = name
    found.__module__ = "aot.ops"
    found.__doc__ = calls.function.__doc__
    found.prepare = calls.prepare
    found.direct = direct.FUNCTIONS[name]
    found.remembering = run
    if hasattr(run, "hits"):
        stats.register(lambda: {name: {"hits": run.hits}}, "ops")
    return found


def face(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch's signature that ``torch.compile`` can look into, with ``run`` for all else.

    Dynamo follows a function of Python and nothing that is called in C, and decides the branch while
    it traces. A signature that is spelled out costs less than one that collects: 0.1 µs a call.
    """
    return _FACES.get(name, _without_dtype)(name, run)


def _with_dtype(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def function(
        input: torch.Tensor,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
    ) -> Any:
        if is_dynamo_compiling():
            return library.call(name, (input, dim, keepdim), {"dtype": dtype, "out": out})
        return run(input, dim, keepdim, dtype=dtype, out=out)

    return function


def _without_dtype(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def function(input: torch.Tensor, dim: Dim = None, keepdim: bool = False, *, out: Any = None) -> Any:
        if is_dynamo_compiling():
            return library.call(name, (input, dim, keepdim), {"out": out})
        return run(input, dim, keepdim, out=out)

    return function


def _all_by_default(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def function(
        input: torch.Tensor, dim: Dim = (), keepdim: bool = False, *, out: torch.Tensor | None = None
    ) -> Any:
        if is_dynamo_compiling():
            return library.call(name, (input, dim, keepdim), {"out": out})
        return run(input, dim, keepdim, out=out)

    return function


_FACES = {
    "sum": _with_dtype,
    "mean": _with_dtype,
    "prod": _with_dtype,
    "amax": _all_by_default,
    "amin": _all_by_default,
}
