"""The typed values of a bundle that is being read: its manifest, a kernel, a table, each checked.

Apart from ``aot.reader``, because the decoder takes longer to import than a bundle to open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from threading import Lock
from typing import Any

from msgspec import DecodeError, Raw
from msgspec.json import Decoder
from msgspec.structs import force_setattr

from aot.dtypes import DTYPES
from aot.errors import BundleError, TargetError
from aot.manifest import (
    Arg,
    ConstexprArg,
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

_KINDS: dict[str, type[Arg]] = {"pointer": PointerArg, "scalar": ScalarArg, "constexpr": ConstexprArg}
_SCALARS = tuple(d.scalar for d in DTYPES.values() if d.scalar is not None)

# Made once, with this module: making one takes longer than decoding a table.
_KERNEL, _ENTRY, _ENTRIES = Decoder(Kernel), Decoder(Entry), Decoder(tuple[Entry, ...])
_PARTS = Decoder(tuple[Raw, ...])


def read_manifest(data: bytes, where: str) -> Manifest:
    """Decode a whole manifest. Raises ``BundleError`` for one that contradicts itself."""
    manifest = decode_manifest(data, where)
    if len({kernel.name for kernel in manifest.kernels}) != len(manifest.kernels):
        raise BundleError(f"{where}: the same kernel is listed twice")
    tables = [table for kernel in manifest.kernels for table in kernel.tables]
    if len(set(tables)) != len(tables):
        raise BundleError(f"{where}: the same table is listed twice")
    counted = sum(table.count for table in tables)
    if counted != manifest.variants:
        raise BundleError(
            f"{where}: its tables hold {counted} variants, wanted {manifest.variants}; build the bundle again"
        )
    if not counted and not manifest.missing:
        raise BundleError(f"{where}: the bundle is empty; build it again")
    targets = {pack.target for pack in manifest.packs}
    for kernel in manifest.kernels:
        _check_packs(kernel, targets, where)
    for target in targets:
        _check_target(target, where)
    return manifest


def read_kernel(data: memoryview, name: str, targets: Collection[str], where: str) -> Kernel:
    """Decode the part of a manifest that is kernel ``name``. Raises ``BundleError``."""
    kernel = decode(data, _KERNEL, f"{where}, kernel {name}")
    if kernel.name != name:
        raise BundleError(f"{where}: found kernel {kernel.name}, wanted {name}; build the bundle again")
    if len(set(kernel.tables)) != len(kernel.tables):
        raise BundleError(f"{where}: the same table is listed twice")
    _check_packs(kernel, targets, where)
    for target in {table.target for table in kernel.tables}:
        _check_target(target, where)
    return kernel


def _check_packs(kernel: Kernel, targets: Collection[str], where: str) -> None:
    for table in kernel.tables:
        if table.target not in targets:
            raise BundleError(f"{where}: kernel {kernel.name} is built for {table.target}, which has no pack")


def _check_target(target: str, where: str) -> None:
    try:
        Target.parse(target)
    except TargetError as error:
        raise BundleError(f"{where}: {error}; upgrade aot-kernels") from None


class Table:
    """The entries of a table in the order of selection, each decoded and checked when it is first taken.

    A first call takes those before the one that serves it, and does not wait for the rest. What entries
    have in common is one object, kept in ``shared``.

    Raises ``BundleError`` for another number of entries than ``ref`` says, and, when it is taken, for one
    that is not of its kernel, target and dtypes.
    """

    __slots__ = (
        "_args",
        "_data",
        "_entries",
        "_left",
        "_lock",
        "_parts",
        "_shared",
        "_where",
        "kernel",
        "ref",
    )

    def __init__(
        self, data: bytes, ref: TableRef, kernel: Kernel, shared: dict[Any, Any], where: str
    ) -> None:
        self.ref, self.kernel = ref, kernel
        self._where, self._shared = where, shared
        parts = decode(data, _PARTS, where)
        if len(parts) != ref.count:
            raise BundleError(f"{where}: found {len(parts)} variants, wanted {ref.count}")
        self._parts: tuple[Raw, ...] = parts
        self._data = data
        self._entries: list[Entry | None] = [None] * len(parts)
        self._left = len(parts)
        self._lock = Lock()
        self._args = [(param.name, _KINDS[param.kind]) for param in kernel.params]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return map(self.__getitem__, range(len(self._entries)))

    def __getitem__(self, index: int) -> Entry:
        entry = self._entries[index]
        if entry is None:
            # Launches go by an entry's identity: one object stands for it in every thread.
            with self._lock:
                entry = self._entries[index]
                if entry is None:
                    entry = self._entries[index] = self._read(index)
                    self._left -= 1
                    if not self._left:
                        self._parts, self._data = (), b""
        return entry

    def _read(self, index: int) -> Entry:
        try:
            entry = _ENTRY.decode(self._parts[index])
        except (DecodeError, UnicodeDecodeError, RecursionError):
            # Decoded as a whole, it says where in the table the fault is.
            entry = decode(self._data, _ENTRIES, self._where)[index]
        self._check(entry)
        _share(entry, self._shared)
        return entry

    def _check(self, entry: Entry) -> None:
        """An entry must be of the table that holds it, and its arguments the kernel's parameters:
        selection and launch go by their names."""
        variant, kernel, where = entry.variant, self.kernel, self._where
        args = variant.args
        types = tuple([arg.dtype for arg in args if type(arg) is PointerArg])
        if variant.kernel != kernel.name or variant.target != self.ref.target or types != self.ref.types:
            raise BundleError(f"{where}: holds a variant of another kernel, target or dtype")
        if [(arg.name, type(arg)) for arg in args] != self._args:
            raise BundleError(
                f"{where}: holds a variant whose arguments are not those of kernel {kernel.name!r}"
            )
        for arg in args:
            if type(arg) is ScalarArg and arg.type not in _SCALARS:
                raise BundleError(
                    f"{where}: found type {arg.type!r} of {arg.name}, wanted one of {', '.join(_SCALARS)}"
                )


def _share(entry: Entry, shared: dict[Any, Any]) -> None:
    """Put one object in place of all that equal it: entries differ in little, and their memory is
    then a sixth. ``shared`` holds the objects."""
    one, variant, binary = shared.setdefault, entry.variant, entry.binary
    args = []
    for arg in variant.args:
        key: object = arg
        if type(arg) is ConstexprArg and type(arg.value) is not str:
            # As keys 1, 1.0 and True are equal, and 0.0 and -0.0 are of one type.
            key = arg.name, type(arg.value), repr(arg.value)
        args.append(one(key, arg))
    for name, value in variant.axes.items():
        if type(value) is str:
            variant.axes[name] = one(value, value)
    force_setattr(variant, "kernel", one(variant.kernel, variant.kernel))
    force_setattr(variant, "target", one(variant.target, variant.target))
    force_setattr(variant, "args", tuple(args))
    force_setattr(variant, "bounds", one(variant.bounds, variant.bounds))
    force_setattr(variant, "options", one(variant.options, variant.options))
    force_setattr(binary, "symbol", one(binary.symbol, binary.symbol))
    force_setattr(binary, "cubin", one(binary.cubin, binary.cubin))
    force_setattr(binary, "params", one(binary.params, binary.params))
    force_setattr(binary, "scratch", one(binary.scratch, binary.scratch))
