"""Which bundle serves a call that names none: what ``aot.use`` set, else ``AOT_BUNDLE_PATH``."""

from __future__ import annotations

import os
import threading

from aot.errors import UsageError
from aot.loader.bundle import Bundle

VARIABLE = "AOT_BUNDLE_PATH"

_lock = threading.Lock()
_used: Bundle | None = None
_found: tuple[str, Bundle] | None = None


def use(bundle: Bundle | str | os.PathLike[str]) -> Bundle:
    """Make ``bundle``, or the bundle in that directory, the default of this process; return it.

    The one before stays open, because other threads may be using it.
    """
    global _used
    opened = bundle if isinstance(bundle, Bundle) else Bundle(bundle)
    with _lock:
        _used = opened
    return opened


def default_bundle() -> Bundle:
    """Return the bundle that :func:`use` set, else the one in the directory ``AOT_BUNDLE_PATH``.

    Raises ``UsageError`` where there is neither, ``BundleError`` where that directory holds no
    sound bundle.
    """
    global _found
    if _used is not None:
        return _used
    path = os.environ.get(VARIABLE)
    if not path:
        raise UsageError(
            f"found no bundle: {VARIABLE} is not set and aot.use was not called; "
            'wanted aot.use("path/to/bundle"), or the path in that variable'
        )
    with _lock:
        if _found is None or _found[0] != path:
            _found = (path, Bundle(path))
        return _found[1]
