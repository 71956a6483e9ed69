"""Ahead-of-time GPU kernels: open a bundle of prebuilt cubins and launch them.

Importing this package imports neither torch nor Triton, and touches no driver.
"""

from __future__ import annotations

# Importing typing and importlib would take longer than all that is here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aot import ops as ops
    from aot.loader import Bundle as Bundle
    from aot.loader import open as open
    from aot.loader import use as use
    from aot.loader.fallback import fallback as fallback
    from aot.loader.ops.override import override as override
    from aot.loader.ops.override import override_all as override_all
    from aot.loader.record import record as record
    from aot.loader.stats import prometheus as prometheus
    from aot.loader.stats import stats as stats

__version__ = "0.1.0"

_LAZY = {
    "Bundle": "aot.loader",
    "fallback": "aot.loader.fallback",
    "open": "aot.loader",
    "override": "aot.loader.ops.override",
    "override_all": "aot.loader.ops.override",
    "prometheus": "aot.loader.stats",
    "record": "aot.loader.record",
    "stats": "aot.loader.stats",
    "use": "aot.loader",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "ops":
        return import_module("aot.ops")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'aot' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What this file itself imports is nobody's API.
    return sorted({*(name for name in globals() if name.startswith("__")), *_LAZY, "ops"})
