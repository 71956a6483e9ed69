"""What happens to an op that no prebuilt kernel serves: an error (strict), or torch's own op (eager).

Strict is the default, so that a service learns of a missing kernel before its users do. In eager
mode torch computes the result, the call is counted, and each kind of miss is logged once.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, get_args

from aot.errors import KernelMiss, NoBundleError, UsageError, nearest
from aot.loader import stats

Mode = Literal["strict", "eager"]

VARIABLE = "AOT_FALLBACK"

_MODES: tuple[Mode, ...] = get_args(Mode)
_log = logging.getLogger("aot")

# None: what the variable says, read when a call first misses.
_mode: Mode | None = None
_logged: set[tuple[str, str, str]] = set()
_thread = threading.local()


class fallback:
    """Choose what an op does that no prebuilt kernel serves, in the whole process.

    ``aot.fallback("eager")``: torch's function of the same name serves it. ``aot.fallback("strict")``, the
    default: it raises ``KernelMiss``. Either holds until the next call; as a context manager, until the
    end of the block, in every thread. The default comes from the environment variable ``AOT_FALLBACK``.
    Raises ``UsageError`` for any other word.
    """

    def __init__(self, mode: Mode) -> None:
        global _mode
        checked = _checked(mode, "aot.fallback")
        self._before = _mode
        _mode = checked

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _mode
        _mode = self._before


def mode() -> Mode:
    """The mode in use. Raises ``UsageError`` where only ``AOT_FALLBACK`` says, and holds another word."""
    if _mode is not None:
        return _mode
    return _checked(os.environ.get(VARIABLE) or "strict", VARIABLE)


def serve_miss(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], error: KernelMiss | NoBundleError
) -> Any:
    """Serve the call ``aot.ops.<name>(*args, **kwargs)`` that ended in ``error``; return torch's result.

    Counts a miss, and in eager mode a fallback, of op ``name``. Raises ``error`` itself in strict mode, where
    torch has no function of that name, and where torch's function has come back here because our
    op stands behind it. Having no bundle at all is served too: a service that chose eager goes on.
    """
    counters = stats.op(name)
    counters.miss()
    function = getattr(sys.modules.get("torch"), name, None)
    serving: tuple[str, ...] = getattr(_thread, "serving", ())
    if function is None or name in serving or mode() == "strict":
        # An error that is kept and raised again would collect a traceback each time.
        raise error.with_traceback(None)
    counters.fallback()
    _log_once(name, args, kwargs, error)
    _thread.serving = (*serving, name)
    try:
        return _call(name, function, args, kwargs)
    finally:
        _thread.serving = serving


def _call(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Make the call as torch takes it: None has no spelling there for most arguments, and some functions
    take ``keepdim`` only beside a ``dim``."""
    given = {**dict(zip(("input", "dim", "keepdim"), args, strict=False)), **kwargs}
    given = {key: value for key, value in given.items() if key == "input" or value is not None}
    if "dim" not in given and given.get("keepdim"):
        if name in ("max", "min"):
            # The same value, NaN included, by the function that keeps dimensions.
            function = getattr(sys.modules["torch"], f"a{name}")
        elif name == "prod":
            found = given["input"]
            given |= {"input": found.reshape((*(1,) * (found.dim() - 1), -1)) if found.dim() else found}
            given["dim"] = -1
        elif name in ("sum", "mean"):
            given["dim"] = None
    elif "dim" not in given:
        given.pop("keepdim", None)
    return function(given.pop("input"), **given)


def _log_once(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> None:
    first = args[0] if args else kwargs.get("input")
    dtype = str(getattr(first, "dtype", "none")).removeprefix("torch.")
    kind = error.kind if isinstance(error, KernelMiss) else "no bundle"
    key = (name, dtype, kind)
    if key not in _logged:
        _logged.add(key)
        _log.warning(
            "aot.ops.%s of %s is served by torch (%s), now and whenever it happens again: %s",
            name,
            dtype,
            kind,
            error,
        )


def _checked(word: object, place: str) -> Mode:
    if word in _MODES:
        return word
    near = nearest(word, _MODES) if isinstance(word, str) else ""
    raise UsageError(f"{place}: found {word!r}, wanted {' or '.join(_MODES)}{near}")
