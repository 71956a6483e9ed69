"""``open`` and ``Bundle``: prebuilt kernels by name.

Opening reads the manifest and touches no driver; the first launch opens the driver, and
each cubin is read, verified and loaded when a call first needs it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aot.errors import KernelMiss, UsageError, nearest
from aot.reader import BundleReader

if TYPE_CHECKING:
    from aot.loader.kernel import Kernel
    from aot.loader.launch import Prepared
    from aot.loader.preload import Preloaded
    from aot.loader.preload_filter import Names, Values
    from aot.manifest import Entry


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
        self._choices: dict[str, dict[object, Entry | KernelMiss]] = {}
        self._counts = {"hits": 0, "misses": 0, "launches": 0, "loads": 0}
        self._tally: Any | None = None

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
        return self.reader.targets

    def kernel(self, name: str) -> Kernel:
        """Return the kernel ``name``. Raises ``UsageError`` with the nearest name for an unknown one."""
        found = self._kernels.get(name)
        if found is None:
            if name not in self.reader.kernels:
                raise UsageError(
                    f"{self.reader.path}: found no kernel {name!r}, wanted one of {', '.join(self.kernels)}"
                    + nearest(name, self.kernels)
                )
            # What a call needs and opening does not is imported here, not in the first call.
            from aot.loader.kernel import Kernel

            found = self._kernels.setdefault(name, Kernel(self, name))
        return found

    def preload(
        self,
        *,
        ops: Names | None = None,
        kernels: Names | None = None,
        dtypes: Any = None,
        axes: Mapping[str, Values] | None = None,
        device: Any = None,
        progress: Callable[[int, int], object] | None = None,
        threads: int | None = None,
    ) -> Preloaded:
        """Load cubins ahead of their first call, all or those of a filter, and say what was done.

        ``ops`` are names of ``aot.ops`` and ``kernels`` names of kernels: together they say what is
        loaded, all kernels where neither is given. Of these only variants whose first pointer has one
        of ``dtypes`` (torch's names, or torch dtypes), and whose axes have the values of ``axes``, such as
        ``{"n_cols": [16, 1024]}``; None stands for a variant without the axis. ``device`` is a number,
        ``"cuda:1"``, a ``torch.device``, ``"all"``, or None for the current one; for each the targets
        that its calls would select. ``progress(done, total)`` is called after each cubin. ``threads``
        read and check cubins.

        Raises ``UsageError`` for a name that the bundle does not have and for a filter that nothing
        passes, ``LaunchError`` while a stream is being captured.
        """
        from aot.loader.preload import preload

        return preload(
            self,
            ops=ops,
            kernels=kernels,
            dtypes=dtypes,
            axes=axes,
            device=device,
            progress=progress,
            threads=threads,
        )

    @property
    def tally(self) -> Any | None:
        """What native code counts the bundle's hits and launches in, or None where there is none."""
        with self._lock:
            if self._tally is None:
                from aot.loader import native

                module = native.module()
                self._tally = None if module is None else module.Tally()
            return self._tally

    def stats(self) -> dict[str, int]:
        """Counts since the bundle was opened: calls that found a variant (``hits``) or none
        (``misses``), ``launches``, and cubins loaded into the driver (``loads``)."""
        with self._lock:
            found = dict(self._counts)
        if self._tally is not None:
            found["hits"] += self._tally.hits
            found["launches"] += self._tally.launches
        return found

    def close(self) -> None:
        """Close the files. Later calls of its kernels raise ``LaunchError``."""
        self._closed = True
        self.reader.close()
        if self._kernels:
            from aot.loader import native

            native.invalidate()

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
