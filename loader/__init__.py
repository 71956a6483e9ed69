"""The loader: open a bundle, choose a prebuilt kernel, launch it. No compiler, and nothing at import.

Importing this package costs no more than the standard library does: the rest comes with
the first name that is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot.loader.bundle import Bundle as Bundle
    from aot.loader.bundle import Kernel as Kernel
    from aot.loader.bundle import open as open
    from aot.loader.discovery import default_bundle as default_bundle
    from aot.loader.discovery import use as use

_LAZY = {
    "Bundle": "aot.loader.bundle",
    "Kernel": "aot.loader.bundle",
    "default_bundle": "aot.loader.discovery",
    "open": "aot.loader.bundle",
    "use": "aot.loader.discovery",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'aot.loader' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What this file itself imports is nobody's API.
    return sorted({*(name for name in globals() if name.startswith("__")), *_LAZY})
