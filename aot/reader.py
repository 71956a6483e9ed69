"""A bundle on disk, read lazily, every byte checked before it is believed.

The format is ``docs/bundle-format.md``.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import BundleError, NoBundleError
from aot.outline import Outline, PackOutline, outline

if TYPE_CHECKING:
    from aot.decoded import Table
    from aot.manifest import CubinRef, Kernel, Manifest, TableRef

PACK_HEADER = b"aotpack\0" + (1).to_bytes(4, "little") + bytes(4)

# Nothing in a sound bundle comes near these; they bound what a damaged one can cost.
MAX_MANIFEST = 256 * 2**20
MAX_TABLE = 128 * 2**20
MAX_CUBIN = 128 * 2**20


class BundleReader:
    """An open bundle: the outline of its manifest, and the packs' file descriptors.

    ``digest`` is the manifest's, ``targets`` are those that it has packs for, ``ptxas`` is the version
    that compiled it, ``kernels`` are decoded one by one when they are asked for.

    Raises ``BundleError`` that names the file for anything missing, cut, swapped or unknown.
    Safe to use from several threads. Use as a context manager, or call :meth:`close`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._fds: dict[str, int] = {}
        self._owners: dict[TableRef, Kernel] = {}
        self._tables: dict[TableRef, Table] = {}
        self._shared: dict[Any, Any] = {}
        self._manifest: Manifest | None = None
        if not os.fspath(path):
            # Path("") is the current directory, which an empty variable of a script does not mean.
            raise NoBundleError("found an empty path, wanted a bundle (a directory with manifest.json)")
        if not self.path.is_dir():
            found = "a file" if self.path.exists() else "nothing"
            raise NoBundleError(
                f"{self.path}: found {found}, wanted a bundle (a directory with manifest.json)"
            )
        self._where = str(self.path / "manifest.json")
        self._outline = self._open()
        self._files = {pack.target: pack.file for pack in self._outline.packs}
        self.digest = self._outline.digest
        self.targets = tuple(pack.target for pack in self._outline.packs)
        self.ptxas = self._outline.ptxas
        self.kernels: Mapping[str, Kernel] = _Kernels(self, self._outline.kernels)

    def __enter__(self) -> BundleReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the packs. What was read before stays valid; reading more raises ``BundleError``."""
        with self._lock:
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _open(self) -> Outline:
        """Read the manifest and open its packs.

        A builder that replaces the bundle meanwhile removes the packs of the manifest that
        was read; then the new manifest is read instead.
        """
        found = self._read_outline()
        while True:
            try:
                self._open_packs(found.packs)
            except BundleError:
                self.close()
                before, found = found, self._read_outline()
                if found == before:
                    raise
            else:
                return found

    def _read_outline(self) -> Outline:
        fd = _open_regular(self.path / "manifest.json")
        try:
            size = os.fstat(fd).st_size
            if size > MAX_MANIFEST:
                raise BundleError(f"{self._where}: found {size} bytes, wanted at most {MAX_MANIFEST}")
            self._data = _pread(fd, size, 0, self._where)
        finally:
            os.close(fd)
        self._manifest = None
        found = outline(self._data)
        if found is None:
            manifest = self.manifest
            packs = tuple(PackOutline(pack.target, pack.file, pack.size) for pack in manifest.packs)
            kernels = dict.fromkeys(kernel.name for kernel in manifest.kernels)
            found = Outline(manifest.digest, packs, manifest.provenance.ptxas, kernels)
        return found

    @property
    def manifest(self) -> Manifest:
        """The whole manifest, decoded when it is first asked for."""
        found = self._manifest
        if found is None:
            from aot.decoded import read_manifest

            found = read_manifest(self._data, self._where)
            self._owners.update((table, kernel) for kernel in found.kernels for table in kernel.tables)
            self._manifest = found
        return found

    def _read_kernel(self, name: str) -> Kernel:
        """Decode one kernel. Raises ``KeyError`` for a name that the bundle does not have."""
        span = self._outline.kernels[name]
        if span is None:
            return next(kernel for kernel in self.manifest.kernels if kernel.name == name)
        from aot.decoded import read_kernel

        kernel = read_kernel(memoryview(self._data)[slice(*span)], name, self.targets, self._where)
        for table in kernel.tables:
            if self._owners.setdefault(table, kernel).name != name:
                raise BundleError(f"{self._where}: the same table is listed twice")
        return kernel

    def _open_packs(self, packs: tuple[PackOutline, ...]) -> None:
        for pack in packs:
            where = self.path / pack.file
            fd = _open_regular(where)
            if self._fds.setdefault(pack.target, fd) != fd:
                os.close(fd)
                raise BundleError(f"{self._where}: target {pack.target} has two packs")
            size = os.fstat(fd).st_size
            if size != pack.size:
                raise BundleError(
                    f"{where}: found {size} bytes, wanted {pack.size}; the file was cut or changed"
                )
            if _pread(fd, len(PACK_HEADER), 0, where) != PACK_HEADER:
                raise BundleError(f"{where}: the header is not that of a pack of version 1")

    def table(self, ref: TableRef) -> Table:
        """Return the entries of one table, in the order of selection; read once, then kept.

        Each entry is decoded and checked when it is first taken, and may then raise ``BundleError``.
        """
        found = self._tables.get(ref)
        if found is None:
            where = f"{self.path}/{self._files[ref.target]}, table at {ref.offset}"
            data = self._blob(ref.target, ref.offset, ref.size, ref.raw_size, MAX_TABLE, "zlib", where)
            _check_hash(data, ref.sha256, where)
            from aot.decoded import Table

            found = Table(data, ref, self._owners[ref], self._shared, where)
            # Another thread may have been first; one object stands for an entry.
            found = self._tables.setdefault(ref, found)
        return found

    def cubin(self, target: str, ref: CubinRef) -> bytes:
        """Return a cubin's bytes, of exactly the size and sha256 that the table promises."""
        where = f"{self.path}/{self._files[target]}, cubin {ref.sha256[:12]} at {ref.offset}"
        data = self._blob(target, ref.offset, ref.size, ref.raw_size, MAX_CUBIN, ref.codec, where)
        _check_hash(data, ref.sha256, where)
        return data

    def _blob(
        self, target: str, offset: int, size: int, raw_size: int, limit: int, codec: str, where: str
    ) -> bytes:
        if raw_size > limit or size > limit:
            raise BundleError(f"{where}: found {max(size, raw_size)} bytes, wanted at most {limit}")
        fd = self._fds.get(target)
        if fd is None:
            raise BundleError(f"{where}: the bundle was closed")
        data = _pread(fd, size, offset, where)
        if codec == "zlib":
            unpacker = zlib.decompressobj()
            try:
                data = unpacker.decompress(data, raw_size + 1)
            except zlib.error as error:
                raise BundleError(f"{where}: does not decompress ({error}); build the bundle again") from None
            if not unpacker.eof or unpacker.unused_data:
                raise BundleError(f"{where}: does not decompress to {raw_size} bytes; build the bundle again")
        if len(data) != raw_size:
            raise BundleError(f"{where}: found {len(data)} bytes, wanted {raw_size}; build the bundle again")
        return data


class _Kernels(Mapping[str, "Kernel"]):
    """The kernels of a bundle by name, in the manifest's order, each decoded when it is first taken."""

    def __init__(self, reader: BundleReader, names: Mapping[str, object]) -> None:
        self._reader, self._names = reader, names
        self._found: dict[str, Kernel] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Kernel:
        found = self._found.get(name)
        if found is None:
            # Another thread may have been first; one object stands for a kernel.
            found = self._found.setdefault(name, self._reader._read_kernel(name))
        return found


def _open_regular(where: Path) -> int:
    try:
        fd = os.open(where, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        found = "a symbolic link" if where.is_symlink() else (error.strerror or str(error)).lower()
        raise BundleError(f"{where}: found {found}, wanted a regular file of a bundle") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BundleError(f"{where}: wanted a regular file")
    return fd


def _pread(fd: int, size: int, offset: int, where: object) -> bytes:
    data = b""
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise BundleError(f"{where}: found {len(data)} bytes, wanted {size}; the file was cut")
        data += more
    return data


def _check_hash(data: bytes, sha256: str, where: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise BundleError(
            f"{where}: found sha256 {found}, wanted {sha256}; the bundle is damaged, build it again"
        )
