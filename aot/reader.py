"""A bundle on disk, read lazily, every byte checked before it is believed.

The format is ``docs/bundle-format.md``.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import zlib
from pathlib import Path

from aot.dtypes import DTYPES
from aot.errors import BundleError, NoBundleError, TargetError
from aot.manifest import (
    Arg,
    ConstexprArg,
    CubinRef,
    Entry,
    Kernel,
    Manifest,
    PointerArg,
    ScalarArg,
    TableRef,
    decode,
    decode_manifest,
)
from aot.target import Target

PACK_HEADER = b"aotpack\0" + (1).to_bytes(4, "little") + bytes(4)

# Nothing in a sound bundle comes near these; they bound what a damaged one can cost.
MAX_MANIFEST = 256 * 2**20
MAX_TABLE = 128 * 2**20
MAX_CUBIN = 128 * 2**20

_KINDS: dict[type[Arg], str] = {PointerArg: "pointer", ScalarArg: "scalar", ConstexprArg: "constexpr"}
_SCALARS = tuple(d.scalar for d in DTYPES.values() if d.scalar is not None)


class BundleReader:
    """An open bundle: the parsed manifest, and the packs' file descriptors.

    Raises ``BundleError`` that names the file for anything missing, cut, swapped or unknown.
    Safe to use from several threads. Use as a context manager, or call :meth:`close`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._fds: dict[str, int] = {}
        self._tables: dict[TableRef, tuple[Entry, ...]] = {}
        if not os.fspath(path):
            # Path("") is the current directory, which an empty variable of a script does not mean.
            raise NoBundleError("found an empty path, wanted a bundle (a directory with manifest.json)")
        if not self.path.is_dir():
            found = "a file" if self.path.exists() else "nothing"
            raise NoBundleError(
                f"{self.path}: found {found}, wanted a bundle (a directory with manifest.json)"
            )
        self.manifest = self._open()
        self.kernels: dict[str, Kernel] = {k.name: k for k in self.manifest.kernels}
        self._owners = {table: kernel for kernel in self.manifest.kernels for table in kernel.tables}

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

    def _open(self) -> Manifest:
        """Read the manifest and open its packs.

        A builder that replaces the bundle meanwhile removes the packs of the manifest that
        was read; then the new manifest is read instead.
        """
        manifest = self._read_manifest()
        while True:
            try:
                self._open_packs(manifest)
            except BundleError:
                self.close()
                before, manifest = manifest, self._read_manifest()
                if manifest == before:
                    raise
            else:
                return manifest

    def _read_manifest(self) -> Manifest:
        where = self.path / "manifest.json"
        fd = _open_regular(where)
        try:
            size = os.fstat(fd).st_size
            if size > MAX_MANIFEST:
                raise BundleError(f"{where}: found {size} bytes, wanted at most {MAX_MANIFEST}")
            data = _pread(fd, size, 0, where)
        finally:
            os.close(fd)
        manifest = decode_manifest(data, str(where))
        if len({kernel.name for kernel in manifest.kernels}) != len(manifest.kernels):
            raise BundleError(f"{where}: the same kernel is listed twice")
        tables = [table for kernel in manifest.kernels for table in kernel.tables]
        if len(set(tables)) != len(tables):
            raise BundleError(f"{where}: the same table is listed twice")
        counted = sum(table.count for table in tables)
        if counted != manifest.variants:
            raise BundleError(
                f"{where}: its tables hold {counted} variants, wanted {manifest.variants}; "
                "build the bundle again"
            )
        if not counted and not manifest.missing:
            raise BundleError(f"{where}: the bundle is empty; build it again")
        targets = {pack.target for pack in manifest.packs}
        for kernel in manifest.kernels:
            for table in kernel.tables:
                if table.target not in targets:
                    raise BundleError(
                        f"{where}: kernel {kernel.name} is built for {table.target}, which has no pack"
                    )
        for target in targets:
            _check_target(target, where)
        return manifest

    def _open_packs(self, manifest: Manifest) -> None:
        for pack in manifest.packs:
            where = self.path / pack.file
            fd = _open_regular(where)
            if self._fds.setdefault(pack.target, fd) != fd:
                os.close(fd)
                raise BundleError(f"{self.path / 'manifest.json'}: target {pack.target} has two packs")
            size = os.fstat(fd).st_size
            if size != pack.size:
                raise BundleError(
                    f"{where}: found {size} bytes, wanted {pack.size}; the file was cut or changed"
                )
            if _pread(fd, len(PACK_HEADER), 0, where) != PACK_HEADER:
                raise BundleError(f"{where}: the header is not that of a pack of version 1")

    def pack_path(self, target: str) -> Path:
        """The file that holds the cubins of ``target``."""
        return next(self.path / pack.file for pack in self.manifest.packs if pack.target == target)

    def table(self, ref: TableRef) -> tuple[Entry, ...]:
        """Return the entries of one table, in the order of selection; read once, then kept."""
        found = self._tables.get(ref)
        if found is None:
            where = f"{self.pack_path(ref.target)}, table at {ref.offset}"
            data = self._blob(ref.target, ref.offset, ref.size, ref.raw_size, MAX_TABLE, "zlib", where)
            _check_hash(data, ref.sha256, where)
            found = decode(data, tuple[Entry, ...], where)
            if len(found) != ref.count:
                raise BundleError(f"{where}: found {len(found)} variants, wanted {ref.count}")
            kernel = self._owners[ref]
            for entry in found:
                _check_entry(entry, ref, kernel, where)
            self._tables[ref] = found
        return found

    def cubin(self, target: str, ref: CubinRef) -> bytes:
        """Return a cubin's bytes, of exactly the size and sha256 that the table promises."""
        where = f"{self.pack_path(target)}, cubin {ref.sha256[:12]} at {ref.offset}"
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


def _check_target(target: str, where: Path) -> None:
    try:
        Target.parse(target)
    except TargetError as error:
        raise BundleError(f"{where}: {error}; upgrade aot-kernels") from None


def _check_entry(entry: Entry, ref: TableRef, kernel: Kernel, where: str) -> None:
    """An entry must be of the table that holds it, and its arguments the kernel's parameters:
    selection and launch go by their names."""
    variant = entry.variant
    if variant.kernel != kernel.name or variant.target != ref.target or variant.types != ref.types:
        raise BundleError(f"{where}: holds a variant of another kernel, target or dtype")
    found = tuple((arg.name, _KINDS[type(arg)]) for arg in variant.args)
    if found != tuple((param.name, param.kind) for param in kernel.params):
        raise BundleError(f"{where}: holds a variant whose arguments are not those of kernel {kernel.name!r}")
    for arg in variant.args:
        if isinstance(arg, ScalarArg) and arg.type not in _SCALARS:
            raise BundleError(
                f"{where}: found type {arg.type!r} of {arg.name}, wanted one of {', '.join(_SCALARS)}"
            )


def _check_hash(data: bytes, sha256: str, where: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise BundleError(
            f"{where}: found sha256 {found}, wanted {sha256}; the bundle is damaged, build it again"
        )
