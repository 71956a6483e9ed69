"""Recording what a service asks for: ``aot.record(path)``, or ``AOT_RECORD=path`` in the environment.

Every miss is written, and every call too where that is asked for. Calls of one kind (kernel,
dtypes, alignment, what integers are multiples of, extents between the same powers of two,
constexprs, options, device) are one record with a count; ``aot.recordfile`` has the format.

A line is written when a kind is first seen and when its count has doubled since, the rest at
``stop`` and at exit: a process that is killed loses no kind of call and at most half of a count,
and a service that misses for a week writes a few lines.
"""

from __future__ import annotations

import atexit
import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from aot.errors import KernelMiss
from aot.loader import native

if TYPE_CHECKING:
    from aot.loader.recordlines import Kind, Sight
    from aot.loader.select import Request
    from aot.manifest import Kernel
    from aot.reader import BundleReader

# The format and the file are imported by the first recording: most services have none.

# The recordings that a miss goes to, and those that every call goes to; None where there is none,
# which is all that a service without recordings pays for.
misses: tuple[Recording, ...] | None = None
calls: tuple[Recording, ...] | None = None

# Kinds of calls that a recording counts. A service whose shapes never repeat must not grow for ever.
_MAX_KINDS = 10_000
# Lines that wait for a file that another process holds locked.
_MAX_WAITING = 10_000


def record(path: str | os.PathLike[str], calls: bool = False) -> Recording:
    """Record misses of every bundle's kernels to the file ``path`` until ``stop()`` or the end of ``with``.

    ``calls``: record the calls that were served too. The file is appended to; any number of
    processes may write to one. Nothing of a tensor's contents is written. A file that cannot
    be written is one warning of the logger ``aot``, and the service goes on.
    """
    recording = Recording(os.fspath(path), calls)
    recording.start()
    with _lock:
        _recordings.append(recording)
        _publish()
    return recording


class Recording:
    """Misses, and calls if ``calls``, on their way to the file ``path``. Made by :func:`record`."""

    def __init__(self, path: str, calls: bool) -> None:
        # The service may change its folder.
        self.path = os.path.abspath(path)
        self.calls = calls
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[object, Kind] = {}
        self._waiting: list[bytes] = []
        self._locked = False
        self._stopped = False

    def __repr__(self) -> str:
        notes = f"{', calls' if self.calls else ''}{', stopped' if self._stopped else ''}"
        return f"<aot.record {self.path!r}{notes}>"

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Open the file once, so that one that cannot be written is known at the start."""
        with self._lock:
            self._send()

    def flush(self) -> None:
        """Write every count that the file does not have yet."""
        with self._lock:
            self._flush()

    def stop(self) -> None:
        """Write what is left, and record nothing more. Stopping twice is no error."""
        with self._lock:
            if not self._stopped:
                self._locked = False
                self._flush()
                self._stopped = True
                if self._waiting:
                    _warn(
                        f"cannot record to {self.path}: another process keeps it locked; "
                        f"lines not written: {len(self._waiting)}"
                    )
        self._withdraw()

    def note(self, event: str, sight: Sight) -> None:
        """Count one call."""
        from aot.loader.recordlines import Kind

        key = event, sight.key
        with self._lock:
            if self._stopped:
                return
            kind = self._kinds.get(key)
            if kind is None:
                if len(self._kinds) >= _MAX_KINDS:
                    self._flush()
                    self._kinds.clear()
                kind = self._kinds[key] = Kind(sight.record(event), sight.ints)
            wider = kind.add(sight.ints)
            # A miss that no bucket covers yet must not be lost with the process.
            if kind.count >= 2 * kind.written or (wider and event == "miss"):
                self._waiting.append(kind.line())
                self._send()

    def _flush(self) -> None:
        self._waiting += [kind.line() for kind in self._kinds.values() if kind.count > kind.written]
        self._send()

    def _send(self) -> None:
        """Append the waiting lines; with the lock held."""
        from aot.loader.recordlines import append

        if self._stopped:
            return
        try:
            if append(self.path, b"".join(self._waiting), wait=not self._locked):
                self._waiting.clear()
                self._locked = False
            elif len(self._waiting) <= _MAX_WAITING:
                # The next line tries again, and a service waits for the lock once.
                self._locked = True
            else:
                raise TimeoutError("another process keeps it locked")
        except OSError as error:
            self._stopped = True
            self._waiting.clear()
            self._kinds.clear()
            _warn(f"cannot record to {self.path}: {(error.strerror or str(error)).lower()}; recording stops")

    def _withdraw(self) -> None:
        with _lock:
            if self in _recordings:
                _recordings.remove(self)
            _publish()


class OneMiss:
    """While it is entered, this thread asks one bundle after the other for the same call: a miss of
    each is one miss, the first bundle's, and none where a later bundle served the call."""

    def __enter__(self) -> None:
        self._outer: list[tuple[BundleReader, Kernel, Request]] | None = getattr(_thread, "held", None)
        self._held: list[tuple[BundleReader, Kernel, Request]] = []
        _thread.held = self._held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.held = self._outer
        if isinstance(error, KernelMiss) and self._held:
            note_miss(*self._held[0])


def note_miss(bundle: BundleReader, info: Kernel, request: Request) -> None:
    """Record a call that no variant serves. Call it where ``record.misses`` is not None."""
    held = getattr(_thread, "held", None)
    if held is not None:
        held.append((bundle, info, request))
        return
    _note(misses, "miss", bundle, info, request)


def note_call(bundle: BundleReader, info: Kernel, request: Request) -> None:
    """Record a call that was served. Call it where ``record.calls`` is not None."""
    _note(calls, "call", bundle, info, request)


def _note(
    recordings: tuple[Recording, ...] | None, event: str, bundle: BundleReader, info: Kernel, request: Request
) -> None:
    from aot.loader.recordlines import Sight

    sight = Sight(bundle, info, request)
    for recording in recordings or ():
        recording.note(event, sight)
        if recording._stopped:
            recording._withdraw()


def _warn(message: str) -> None:
    import logging

    logging.getLogger("aot").warning(message)


_thread = threading.local()
_lock = threading.Lock()
_recordings: list[Recording] = []


def _publish() -> None:
    """Set what the call path looks at; with the lock held."""
    global misses, calls
    running = tuple(r for r in _recordings if not r._stopped)
    misses = running or None
    calls = tuple(r for r in running if r.calls) or None
    # Native code does not look at what it is served.
    native.pause(calls is not None)


def _at_exit() -> None:
    while _recordings:
        _recordings[0].stop()


def _in_child() -> None:
    """After a fork, in the child: what was counted before is the parent's to write."""
    global _lock
    _lock = threading.Lock()
    for recording in _recordings:
        recording._forget()


def _from_environment() -> None:
    path = os.environ.get("AOT_RECORD")
    if path:
        record(path, calls=os.environ.get("AOT_RECORD_CALLS", "0") not in ("", "0"))


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
_from_environment()
