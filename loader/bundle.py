"""``open``, ``Bundle`` and ``Kernel``: prebuilt kernels that are called as ``@triton.jit`` functions are.

Opening reads the manifest and touches no driver; the first launch opens the driver, and
each cubin is read, verified and loaded when a call first needs it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from aot.errors import LaunchError, UsageError, nearest
from aot.loader import miss, torch_adapter
from aot.loader.arguments import Call, read_call
from aot.loader.driver import Device, Driver, Image, get_driver
from aot.loader.launch import (
    Grid,
    GridLike,
    Launcher,
    Prepared,
    check_grid,
    grid_of_call,
    grid_of_spec,
    launch,
)
from aot.loader.packing import Layout
from aot.loader.select import Request, Selection, select_kernel
from aot.manifest import Entry
from aot.reader import BundleReader

# Choices that a kernel remembers. A service whose shapes never repeat must not grow for ever.
_MAX_CHOICES = 4096


def open(path: str | os.PathLike[str]) -> Bundle:
    """Open the bundle in directory ``path``. Raises ``BundleError`` where it is damaged."""
    return Bundle(path)


class Bundle:
    """An open bundle. Use it as a context manager, or call :meth:`close`; safe to use from several threads.

    What was launched goes on after :meth:`close`, and loaded kernels stay loaded: a captured
    graph may hold them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reader = BundleReader(path)
        self._lock = threading.Lock()
        self._closed = False
        self._kernels: dict[str, Kernel] = {}
        self._prepared: dict[int, Prepared] = {}
        self._choices: dict[str, dict[object, Entry]] = {}
        self._counts = {"hits": 0, "misses": 0, "launches": 0, "loads": 0}

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<aot.Bundle {str(self.reader.path)!r}: {len(self.kernels)} kernels>"

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels, in the manifest's order."""
        return tuple(self.reader.kernels)

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that the bundle has cubins for."""
        return tuple(pack.target for pack in self.reader.manifest.packs)

    def kernel(self, name: str) -> Kernel:
        """Return the kernel ``name``. Raises ``UsageError`` with the nearest name for an unknown one."""
        found = self._kernels.get(name)
        if found is None:
            if name not in self.reader.kernels:
                raise UsageError(
                    f"{self.reader.path}: found no kernel {name!r}, wanted one of {', '.join(self.kernels)}"
                    + nearest(name, self.kernels)
                )
            found = self._kernels.setdefault(name, Kernel(self, name))
        return found

    def stats(self) -> dict[str, int]:
        """Counts since the bundle was opened: calls that found a variant (``hits``) or none
        (``misses``), ``launches``, and cubins loaded into the driver (``loads``)."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Close the files. Later calls of its kernels raise ``LaunchError``."""
        self._closed = True
        self.reader.close()

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _prepare(self, entry: Entry) -> Prepared:
        # Entries live as long as the reader that keeps them, so their identity is a key.
        found = self._prepared.get(id(entry))
        if found is None:
            variant, binary = entry.variant, entry.binary
            where = f"{self.reader.path}: kernel {variant.kernel!r}, {binary.symbol} of {variant.target}"

            def read() -> bytes:
                data = self.reader.cubin(variant.target, binary.cubin)
                self._count("loads")
                return data

            image = Image(
                sha256=binary.cubin.sha256,
                symbol=binary.symbol,
                read=read,
                shared=binary.shared,
                num_ctas=variant.options.num_ctas,
                kernel=variant.kernel,
                target=variant.target,
                made_by=f"ptxas {self.reader.manifest.provenance.ptxas}",
            )
            found = Prepared(entry=entry, layout=Layout.of(entry, where), image=image)
            self._prepared[id(entry)] = found
        return found


class Kernel:
    """One kernel of a bundle. ``kernel[grid](*args, **kwargs)`` launches it.

    Arguments are those of the ``@triton.jit`` function: tensors, numbers and constexprs, by
    position or by name, and ``num_warps``, ``num_stages``, ``num_ctas``, ``maxnreg`` where the
    call insists on one. A constexpr that is left out and has no default is the variant's to
    decide. The grid is a tuple or list of one to three sizes, or a callable that returns one
    and gets every argument by name. ``kernel(*args, **kwargs)`` takes the grid of the spec.

    The kernel is queued on torch's current stream of the tensors' device (the default stream
    for arrays that are not torch's), or on the stream of :meth:`with_stream`. A call returns
    the chosen entry, or None where the grid is empty and nothing was launched.

    Raises ``LaunchError`` for a wrong call, ``KernelMiss`` where no variant serves it,
    ``BundleError`` for a damaged bundle, ``DriverError`` for what the driver refuses.
    """

    __slots__ = ("_bundle", "_choices", "_stream", "info", "name")

    def __init__(self, bundle: Bundle, name: str, stream: int | None = None) -> None:
        self._bundle = bundle
        self._stream = stream
        self._choices = bundle._choices.setdefault(name, {})
        self.name = name
        self.info = bundle.reader.kernels[name]

    def __repr__(self) -> str:
        return f"<aot.Kernel {self.name}({', '.join(p.name for p in self.info.params)})>"

    def __getitem__(self, grid: GridLike) -> Callable[..., Entry | None]:
        def call(*args: Any, **kwargs: Any) -> Entry | None:
            return self._run(grid, args, kwargs)

        return call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Entry | None:
        return self._run(None, args, kwargs)

    def with_stream(self, stream: object) -> Kernel:
        """Return this kernel launching on ``stream``: a handle, or an object that has one as
        ``cuda_stream`` (torch's) or through ``__cuda_stream__`` (the CUDA Python protocol)."""
        return Kernel(self._bundle, self.name, _stream_handle(stream))

    def select(self, request: Request) -> Selection:
        """Choose the variant for ``request``, with the reasons; needs neither driver nor GPU."""
        return select_kernel(request, self.info, self._bundle.reader.table)

    def _run(self, grid: GridLike | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | None:
        bundle = self._bundle
        if bundle._closed:
            raise LaunchError(f"kernel {self.name!r}: its bundle {bundle.reader.path} was closed")
        call = read_call(self.info, args, kwargs)
        if grid is not None and not callable(grid) and 0 in check_grid(self.name, grid):
            return None
        driver = get_driver()
        device = driver.device(_device_index(driver, call))
        entry = self._choose(call, device)
        bundle._count("hits")
        sizes = self._grid(grid, entry, call)
        if 0 in sizes:
            return None
        stream = self._stream if self._stream is not None else _stream_of(call, device)
        launcher: Launcher = driver.launch
        launch(driver, device, bundle._prepare(entry), call, sizes, stream, launcher)
        bundle._count("launches")
        return entry

    def _choose(self, call: Call, device: Device) -> Entry:
        """The variant that serves a call. Selection is pure, so equal calls share one choice."""
        key = (device.capability, device.max_shared, call.key())
        entry = self._choices.get(key)
        if entry is not None:
            return entry
        request = Request(
            kernel=self.name,
            args=call.values(),
            constexprs=call.constexprs,
            options=call.options,
            capability=device.capability,
            max_shared=device.max_shared,
        )
        selection = self.select(request)
        if selection.entry is None:
            self._bundle._count("misses")
            raise miss.kernel_miss(self._bundle.reader, self.info, request, selection, str(device))
        if len(self._choices) >= _MAX_CHOICES:
            self._choices.clear()
        self._choices[key] = selection.entry
        return selection.entry

    def _grid(self, grid: GridLike | None, entry: Entry, call: Call) -> Grid:
        variant = entry.variant
        found = grid_of_spec(self.info, variant, call) if grid is None else grid_of_call(grid, variant, call)
        return check_grid(self.name, found, variant.options.num_ctas)


def _device_index(driver: Driver, call: Call) -> int:
    """The tensors' device; where none says, the one whose memory they are; else the current one."""
    if call.device is not None:
        return call.device
    for pointer in call.pointers.values():
        found = driver.device_of(pointer.address) if pointer.address else None
        if found is not None:
            return found
    current = torch_adapter.current_device()
    return driver.current_device() if current is None else current


def _stream_of(call: Call, device: Device) -> int:
    if any(pointer.torch for pointer in call.pointers.values()):
        return torch_adapter.current_stream(device.index)
    return 0


def _stream_handle(stream: object) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    handle = getattr(stream, "cuda_stream", None)
    if isinstance(handle, int):
        return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        return int(pair[1])
    raise UsageError(f"found stream {stream!r}, wanted a handle, torch's stream or a CUDA Python stream")
