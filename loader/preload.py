"""Loading cubins ahead of their first call: all of a bundle's, or those that a filter names.

A service preloads before it captures graphs, in which nothing can be loaded, and before the
first request, which else waits for the loads. Cubins are read, unpacked and compared with
their sha256 in several threads, while the calling thread gives them to the driver one by one.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from aot.errors import LaunchError, UsageError
from aot.loader import torch_adapter
from aot.loader.driver import Device, Driver, Image, get_driver
from aot.loader.kernel import image_of
from aot.loader.preload_filter import Names, Values, entries_for, nothing_chosen, read_choice
from aot.manifest import Entry

if TYPE_CHECKING:
    from aot.loader.bundle import Bundle

# Reading is a few tens of microseconds a cubin: more threads than this wait for each other.
_MOST_THREADS = 4
# Cubins that are read ahead of the driver, for each thread.
_AHEAD = 4


class Preloaded(Struct, frozen=True, kw_only=True):
    """What one preload did: ``loaded`` cubins were given to the driver, ``already`` were there before;
    ``bytes`` is the size of the former, ``devices`` are those that were served (``cuda:0``)."""

    loaded: int
    already: int
    bytes: int
    milliseconds: float
    devices: tuple[str, ...]


def preload(
    bundle: Bundle,
    *,
    ops: Names | None = None,
    kernels: Names | None = None,
    dtypes: Any = None,
    axes: Mapping[str, Values] | None = None,
    device: Any = None,
    progress: Callable[[int, int], object] | None = None,
    threads: int | None = None,
) -> Preloaded:
    """See :meth:`aot.loader.bundle.Bundle.preload`."""
    started = time.perf_counter()
    if bundle._closed:
        raise LaunchError(f"found bundle {bundle.reader.path} closed, wanted an open one to preload")
    if threads is None:
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
    elif threads < 1:
        raise UsageError(f"found threads = {threads!r}, wanted 1 or more")
    choice = read_choice(bundle, ops, kernels, dtypes, axes)
    driver = get_driver()
    devices = _devices(driver, device)
    wanted: dict[Device, dict[tuple[str, str], Entry]] = {}
    for chosen in devices:
        _refuse_capture(driver, chosen)
        found = entries_for(bundle, choice, chosen)
        if found:
            wanted[chosen] = found
    if not wanted:
        raise nothing_chosen(bundle, choice, devices)
    distinct = {key: entry for found in wanted.values() for key, entry in found.items()}
    loads = _Loads(bundle, driver, distinct, threads, progress)
    for chosen, found in wanted.items():
        loads.load(chosen, found)
    return Preloaded(
        loaded=loads.loaded,
        already=len({sha256 for sha256, _ in distinct}) - loads.loaded,
        bytes=loads.bytes,
        milliseconds=(time.perf_counter() - started) * 1000,
        devices=tuple(f"cuda:{chosen.index}" for chosen in wanted),
    )


class _Loads:
    """The loads of one preload, counted."""

    def __init__(
        self,
        bundle: Bundle,
        driver: Driver,
        distinct: Mapping[tuple[str, str], Entry],
        threads: int,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        self.loaded = self.bytes = 0
        self._bundle, self._driver, self._threads, self._progress = bundle, driver, threads, progress
        self._total = len(distinct)
        self._seen: set[tuple[str, str]] = set()

    def load(self, device: Device, entries: Mapping[tuple[str, str], Entry]) -> None:
        """Have every entry ready to launch on ``device``."""
        images = [(key, image_of(self._bundle, entry), entry) for key, entry in entries.items()]
        stream = _current_stream(self._driver, device)
        with self._driver.current(device):
            for (key, image, _), data in zip(images, self._read_ahead(images), strict=True):
                if data is not None:
                    image = replace(image, read=self._counted(data))
                self._driver.function(device, image, stream)
                if key not in self._seen:
                    self._seen.add(key)
                    if self._progress is not None:
                        self._progress(len(self._seen), self._total)

    def _counted(self, data: bytes) -> Callable[[], bytes]:
        def read() -> bytes:
            # Asked for only by the load itself: another thread may have been first.
            self._bundle._count("loads")
            self.loaded += 1
            self.bytes += len(data)
            return data

        return read

    def _read_ahead(self, images: Iterable[tuple[Any, Image, Entry]]) -> Iterator[bytes | None]:
        """The verified bytes of each cubin, or None where the driver has it already."""
        reader, driver = self._bundle.reader, self._driver

        def read(image: Image, entry: Entry) -> bytes | None:
            if driver.has_loaded(image.sha256):
                return None
            return reader.cubin(entry.variant.target, entry.binary.cubin)

        if self._threads == 1:
            for _, image, entry in images:
                yield read(image, entry)
            return
        # Not an executor's threads, which the end of the interpreter forbids: a preload that a thread of
        # the service has begun still ends well while the main thread waits for that one.
        tasks: SimpleQueue[tuple[Future[bytes | None], Image, Entry] | None] = SimpleQueue()

        def work() -> None:
            while (task := tasks.get()) is not None:
                future, image, entry = task
                try:
                    future.set_result(read(image, entry))
                except BaseException as error:
                    future.set_exception(error)

        workers = [Thread(target=work, name=f"aot-preload-{i}") for i in range(self._threads)]
        waiting: deque[Future[bytes | None]] = deque()
        try:
            for worker in workers:
                worker.start()
            for _, image, entry in images:
                waiting.append(Future())
                tasks.put((waiting[-1], image, entry))
                if len(waiting) == _AHEAD * self._threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for _ in workers:
                tasks.put(None)
            for worker in workers:
                if worker.ident is not None:
                    worker.join()


def _devices(driver: Driver, device: Any) -> tuple[Device, ...]:
    """The devices that ``device`` names. Raises ``UsageError``; ``DriverError`` for one that is not there."""
    if isinstance(device, str) and device == "all":
        return tuple(driver.device(shown.index) for shown in driver.survey())
    kind: object = "cuda"
    index: object = device
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        index = int(number) if number.isdecimal() else None if device == "cuda" else device
    elif device is not None and not isinstance(device, int):
        kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if kind != "cuda" or isinstance(index, bool) or not isinstance(index, int | None):
        raise UsageError(f'found device {device!r}, wanted a number, "cuda:1", torch.device, "all" or None')
    if index is None:
        current = torch_adapter.current_device()
        index = driver.current_device() if current is None else current
    return (driver.device(index),)


def _current_stream(driver: Driver, device: Device) -> int:
    """torch's current stream of the device, or the default stream where torch has not started CUDA."""
    return 0 if torch_adapter.current_device() is None else torch_adapter.current_stream(device.index)


def _refuse_capture(driver: Driver, device: Device) -> None:
    with driver.current(device):
        # The default stream answers with an error while any stream that waits for it is captured.
        for stream in {0, _current_stream(driver, device)}:
            if driver.is_capturing(stream):
                raise LaunchError(
                    f"a stream of {device} is being captured, and nothing can be loaded meanwhile; "
                    "call preload before the capture begins"
                )
