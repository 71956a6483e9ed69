"""Ahead-of-time GPU kernels: open a bundle of prebuilt cubins and launch them.

Importing this package imports neither torch nor Triton, and touches no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot import ops as ops
    from aot.loader import Bundle as Bundle
    from aot.loader import open as open
    from aot.loader import use as use

__version__ = "0.1.0"

_LAZY = {"Bundle": "aot.loader", "open": "aot.loader", "use": "aot.loader"}


def __getattr__(name: str) -> Any:
    if name == "ops":
        return import_module("aot.ops")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'aot' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What this file itself imports is nobody's API.
    return sorted({*(name for name in globals() if name.startswith("__")), *_LAZY, "ops"})
