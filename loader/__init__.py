"""The loader: open a bundle, choose a prebuilt kernel, launch it. No compiler, and nothing at import.

Importing this package costs no more than the standard library does: the rest comes with
the first name that is used.
"""

from __future__ import annotations

# Importing typing and importlib would take longer than all that is here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aot.loader.bundle import Bundle as Bundle
    from aot.loader.bundle import open as open
    from aot.loader.discovery import default_bundle as default_bundle
    from aot.loader.discovery import default_bundles as default_bundles
    from aot.loader.discovery import refresh as refresh
    from aot.loader.discovery import use as use
    from aot.loader.kernel import Kernel as Kernel

_LAZY = {
    "Bundle": "aot.loader.bundle",
    "Kernel": "aot.loader.kernel",
    "default_bundle": "aot.loader.discovery",
    "default_bundles": "aot.loader.discovery",
    "open": "aot.loader.bundle",
    "refresh": "aot.loader.discovery",
    "use": "aot.loader.discovery",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'aot.loader' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What this file itself imports is nobody's API.
    return sorted({*(name for name in globals() if name.startswith("__")), *_LAZY})
