"""The source files that a kernel reaches: its own and, through imports, those beside it.

A cubin depends on every helper that its kernel calls. Files are found by reading import
statements; packages that are installed elsewhere count through their versions, not here.
"""

from __future__ import annotations

import ast
import hashlib
import os
import warnings
from functools import lru_cache
from pathlib import Path

from aot.errors import UsageError


@lru_cache(maxsize=1024)
def closure_sha256(path: str) -> str:
    """Return one sha256 for the file at ``path`` and all that it imports from its own folder tree.

    File names count relative to the file's folder, so that moving the folder changes
    nothing. The result is kept for the life of the process: a build sees one state.
    """
    digest = hashlib.sha256()
    for name, data in sorted(_closure(Path(path)).items()):
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _closure(start: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    pending = [start]
    while pending:
        path = pending.pop()
        name = _relative(path, start.parent)
        if name in found:
            continue
        try:
            data = path.read_bytes()
            with warnings.catch_warnings():
                # What Python thinks of a source's style is not ours to print.
                warnings.simplefilter("ignore")
                tree = ast.parse(data)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"{path}: cannot read this source: {error}") from None
        found[name] = data
        for node in ast.walk(tree):
            pending += _imported(node, path)
    return found


def _relative(path: Path, folder: Path) -> str:
    try:
        return path.relative_to(folder).as_posix()
    except ValueError:
        return os.path.relpath(path, folder).replace(os.sep, "/")


def _imported(node: ast.AST, path: Path) -> list[Path]:
    """The files that one import statement of ``path`` brings in, as far as they lie in its tree."""
    if isinstance(node, ast.Import):
        dotted = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        dotted = [base, *(f"{base.rstrip('.') or base}.{alias.name}" for alias in node.names)]
        if node.level and not node.module:
            dotted = [f"{base}{alias.name}" for alias in node.names]
    else:
        return []
    files = []
    for name in dotted:
        level = len(name) - len(name.lstrip("."))
        parts = [part for part in name.split(".") if part]
        if not parts:
            continue
        roots = [path.parents[level - 1]] if level else [path.parent, *_package_roots(path)]
        places = [root.joinpath(*parts) for root in roots]
        candidates = [c for place in places for c in (place.with_suffix(".py"), place / "__init__.py")]
        files += [candidate for candidate in candidates if candidate.is_file()]
    return files


def _package_roots(path: Path) -> list[Path]:
    """The folder that holds the top-level package of ``path``, if it lies in one."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return [folder] if folder != path.parent else []
