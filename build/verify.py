"""Check everything that a bundle says: hashes, counts, layout of the packs, ABI of each cubin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from aot.build.abi import check_binary
from aot.errors import BuildError, BundleError
from aot.manifest import Pack
from aot.reader import PACK_HEADER, BundleReader


def verify(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return what is wrong with the bundle at ``path``, one line a fault, nothing if it is sound.

    Raises ``BundleError`` where it cannot even be opened.
    """
    with BundleReader(path) as reader:
        return faults_of(reader)


def faults_of(reader: BundleReader) -> tuple[str, ...]:
    """As :func:`verify`, for a bundle that is open."""
    return tuple(_faults(reader))


def _faults(reader: BundleReader) -> Iterator[str]:
    manifest = reader.manifest
    for missing in manifest.missing:
        yield f"{reader.path}: variant of {missing.kernel} for {missing.target} is missing: {missing.error}"
    listed = {pack.file for pack in manifest.packs} | {"manifest.json"}
    for extra in sorted(set(os.listdir(reader.path)) - listed):
        yield f"{reader.path / extra}: a file that the manifest does not list"
    for pack in manifest.packs:
        yield from _pack_faults(reader, pack)


def _pack_faults(reader: BundleReader, pack: Pack) -> Iterator[str]:
    where = reader.path / pack.file
    blobs: dict[tuple[int, int], str] = {}
    cubins: dict[str, bytes] = {}
    for kernel in reader.manifest.kernels:
        names = tuple(param.name for param in kernel.params)
        for ref in kernel.tables:
            if ref.target != pack.target:
                continue
            blobs[ref.offset, ref.size] = f"table of {kernel.name} at {ref.offset}"
            try:
                entries = tuple(reader.table(ref))
            except BundleError as error:
                yield str(error)
                continue
            for entry in entries:
                place = f"{where}, {entry.variant.kernel} {dict(entry.variant.axes)}"
                cubin_ref = entry.binary.cubin
                blobs[cubin_ref.offset, cubin_ref.size] = f"cubin {cubin_ref.sha256[:12]}"
                if entry.variant.kernel != kernel.name:
                    yield f"{place}: filed under the kernel {kernel.name}"
                if tuple(arg.name for arg in entry.variant.args) != names:
                    yield f"{place}: its parameters are not those of the kernel {kernel.name}"
                try:
                    if cubin_ref.sha256 not in cubins:
                        cubins[cubin_ref.sha256] = reader.cubin(pack.target, cubin_ref)
                    check_binary(entry.variant, entry.binary, cubins[cubin_ref.sha256])
                except BundleError as error:
                    yield str(error)
                except BuildError as error:
                    yield f"{place}: {error}"
    if len(cubins) != pack.cubins:
        yield f"{where}: found {len(cubins)} sound cubins, wanted {pack.cubins}"
    yield from _layout_faults(where, pack, blobs)


def _layout_faults(where: Path, pack: Pack, blobs: dict[tuple[int, int], str]) -> Iterator[str]:
    """Every byte behind the header belongs to exactly one blob."""
    end = len(PACK_HEADER)
    for (offset, size), what in sorted(blobs.items()):
        if offset != end:
            yield f"{where}: {what} begins at {offset}, wanted {end} (a gap or an overlap)"
        end = offset + size
    if end != pack.size:
        yield f"{where}: the blobs end at {end}, the file at {pack.size}"
