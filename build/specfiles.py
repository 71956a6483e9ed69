"""Spec files to change, and the changed ones written where they belong."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.build.fromrecord import Revision
from aot.build.specedit import SpecText
from aot.build.specfile import load_specs, spec_paths
from aot.build.yamlspans import EditError
from aot.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFiles:
    """``texts`` of the specs by path; ``places``: where each is written if it changed."""

    texts: Mapping[str, str]
    places: Mapping[str, Path]


def gather(specs: Sequence[str], out: Path | None) -> SpecFiles:
    """Read spec files and folders of them.

    In ``out`` a file has the place that it has in the folder that was given. One that is already
    there is read instead: it came from an earlier run, and holds what that added and what was
    edited since. Raises ``SpecError``, ``UsageError``.
    """
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"{out}: found a file, wanted a folder for the specs")
    texts: dict[str, str] = {}
    places: dict[str, Path] = {}
    origins: dict[Path, str] = {}
    for given in specs:
        for file in spec_paths([given]):
            path = file
            if out is not None:
                place = out / (
                    os.path.relpath(file, given) if os.path.isdir(given) else os.path.basename(file)
                )
                first = origins.setdefault(place, file)
                if os.path.realpath(first) != os.path.realpath(file):
                    raise UsageError(f"found {first} and {file}, wanted one spec for {place}")
                path = str(place) if place.exists() else file
                places[path] = place
            texts[path] = _read(path)
    return SpecFiles(texts=texts, places=places)


def write(files: SpecFiles, revision: Revision) -> list[str]:
    """Write specs where they changed or are not yet, and return the paths.

    A file appears whole or not at all. One that is written to another folder names its sources from there.
    """
    written = []
    changed = {change.file: change.new for change in revision.files}
    for path, place in files.places.items():
        text = changed.get(path, files.texts[path])
        if os.path.abspath(place) != os.path.abspath(path):
            text = _moved(path, text, place, files.texts)
        elif text == files.texts[path]:
            continue
        try:
            _replace(place, text)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"{place}: {reason}; the spec was not written") from None
        written.append(str(place))
    return written


def _read(path: str) -> str:
    if not os.path.isfile(path):
        raise UsageError(f"{path}: found no regular file, wanted a spec file")
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        # Said better by whoever reads specs.
        load_specs([path])
        raise


def _moved(file: str, text: str, place: Path, others: Mapping[str, str]) -> str:
    """The text as a file at ``place`` must have it: the sources are looked for beside it."""
    changed = SpecText(text)
    for spec in load_specs(list(others), {**others, file: text}):
        if spec.file == file and spec.source.path is not None:
            path = os.path.relpath(os.path.realpath(spec.source.path), os.path.realpath(place.parent))
            written = f"{path.replace(os.sep, '/')}:{spec.source.function}"
            try:
                changed.set_source(spec.kernel, written)
            except EditError as error:
                raise UsageError(f"{file}: cannot write a copy to {place.parent}: {error}") from None
    return changed.text


def _replace(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
