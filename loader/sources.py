"""Where bundles may lie: ``AOT_BUNDLE_PATH``, and the entry points of installed packages.

A place is turned into candidates, each the path of a bundle or the reason why there is none.
Nothing is raised here: whoever installs a broken package must not stop a service that never
needed it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

VARIABLE = "AOT_BUNDLE_PATH"
GROUP = "aot.bundles"
MANIFEST = "manifest.json"


class Candidate(NamedTuple):
    """A path that should be a bundle. ``reason`` says why it is not even worth opening, or is None."""

    source: str
    path: str
    reason: str | None = None


def from_variable() -> Iterator[Candidate]:
    """The bundles of each entry of ``AOT_BUNDLE_PATH``, in its order. Empty entries mean nothing."""
    for entry in os.environ.get(VARIABLE, "").split(os.pathsep):
        if entry:
            yield from _expand(VARIABLE, entry)


def from_entry_points() -> Iterator[Candidate]:
    """The bundles of installed packages, in the order of their entry points' names."""
    # Importing this costs more than opening a bundle, and most processes need none of it.
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        dist = point.dist
        package = f" of {dist.metadata['Name']} {dist.version}" if dist is not None else ""
        source = f"entry point {point.name!r}{package}"
        try:
            folders = _folders(point)
        except (Exception, SystemExit) as error:
            # The package's own code ran: it may fail in any way.
            reason = f"{point.value} failed with {type(error).__name__}: {error}"
            yield Candidate(source=source, path=point.value, reason=reason)
        else:
            for folder in folders:
                yield from _expand(source, folder)


def _folders(point: EntryPoint) -> list[str]:
    """What an entry point names: a module's own folders, or the path that an attribute is or returns."""
    from importlib import import_module
    from importlib.util import find_spec

    if point.attr:
        value: Any = import_module(point.module)
        for name in point.attr.split("."):
            value = getattr(value, name)
        if callable(value):
            value = value()
        if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
            raise TypeError(f"found {value!r}, wanted the path of a bundle")
        return [os.fspath(value)]
    # A bundle is data, so its module is looked up and not run; only the packages around it are.
    spec = find_spec(point.module)
    if spec is None:
        raise ModuleNotFoundError(f"found no module {point.module!r}")
    if spec.submodule_search_locations is not None:
        return list(spec.submodule_search_locations)
    if spec.origin is None or not spec.has_location:
        raise TypeError(f"module {point.module!r} has no folder")
    return [os.path.dirname(spec.origin)]


def _expand(source: str, path: str) -> Iterator[Candidate]:
    """``path`` itself, or the bundles directly in it, by name, where it is a folder that holds some."""
    if os.path.lexists(os.path.join(path, MANIFEST)) or not os.path.isdir(path):
        yield Candidate(source=source, path=path)
        return
    try:
        inside = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    except OSError as error:
        reason = f"{path}: found a folder that cannot be read ({error.strerror}), wanted a bundle"
        yield Candidate(source=source, path=path, reason=reason)
        return
    found = [folder for folder in inside if os.path.lexists(os.path.join(folder, MANIFEST))]
    if not found:
        reason = f"{path}: found no {MANIFEST} in it or in a folder in it, wanted a bundle or bundles"
        yield Candidate(source=source, path=path, reason=reason)
    for folder in found:
        yield Candidate(source=source, path=folder)
