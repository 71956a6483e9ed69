"""One recorded call, what it is counted under, and the file that its lines are appended to."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING

from aot.errors import AotError
from aot.loader.select import PointerValue, Request, select_kernel
from aot.recordfile import (
    RECORD_VERSION,
    ArgSeen,
    BoolSeen,
    FloatSeen,
    IntSeen,
    PointerSeen,
    Record,
    claim_of,
    encode_record,
    float_range,
    with_ranges,
    write_const,
)

if TYPE_CHECKING:
    from aot.loader.packing import Number
    from aot.manifest import Kernel
    from aot.reader import BundleReader

_LOCK_TRIES = 50
_LOCK_PAUSE = 0.001
_NO_SHARED_LIMIT = 2**62
_BEGIN = b'{"aot_record":'


class Kind:
    """A kind of call: its record without a count, the range of each integer, how often it was seen."""

    __slots__ = ("count", "high", "low", "record", "written")

    def __init__(self, record: Record, ints: tuple[int, ...]) -> None:
        self.record = record
        self.low = list(ints)
        self.high = list(ints)
        self.count = 0
        self.written = 0

    def add(self, ints: tuple[int, ...]) -> bool:
        """Count a call; return whether it made a range wider."""
        self.count += 1
        wider = False
        for index, value in enumerate(ints):
            if value < self.low[index]:
                self.low[index] = value
                wider = True
            elif value > self.high[index]:
                self.high[index] = value
                wider = True
        return wider

    def line(self) -> bytes:
        """The line for what was counted since the last one."""
        count = self.count - self.written
        self.written = self.count
        return encode_record(with_ranges(self.record, count, self.low, self.high))


class Sight:
    """One call as it is recorded. ``key`` is its kind, ``ints`` its integers and bools in order."""

    __slots__ = ("_bundle", "_info", "_request", "ints", "key")

    def __init__(self, bundle: BundleReader, info: Kernel, request: Request) -> None:
        self._bundle = bundle
        self._info = info
        self._request = request
        ints: list[int] = []
        parts: list[object] = []
        for value in request.args.values():
            if isinstance(value, PointerValue):
                parts.append((value.dtype, value.aligned))
            elif isinstance(value, int):
                ints.append(int(value))
                # The claim and the extent class of aot.recordfile, at the price of a hot path.
                claim = 1 if value == 1 else 16 if value % 16 == 0 else 0
                parts.append((type(value), claim, value < 0, (abs(value) - 1).bit_length() if value else -1))
            else:
                parts.append(float_range(value))
        self.ints = tuple(ints)
        self.key = (
            bundle.digest,
            info.name,
            request.capability,
            request.max_shared,
            tuple(parts),
            tuple(request.constexprs.items()),
            tuple(map(type, request.constexprs.values())),
            tuple(request.options.items()),
        )

    def record(self, event: str) -> Record:
        """The record of this call, with the ranges of this call alone."""
        bundle, info, request = self._bundle, self._info, self._request
        shared = None
        if event == "miss":
            try:
                served = select_kernel(_without_shared_limit(request), info, bundle.table).entry
            except AotError:
                # The bundle was closed by another thread; the miss is the error to raise.
                served = None
            shared = served.binary.shared if served is not None else None
        return Record(
            aot_record=RECORD_VERSION,
            by="bundle",
            event=event,
            count=1,
            kernel=info.name,
            capability=request.capability,
            max_shared=request.max_shared,
            args=tuple(_seen(name, value) for name, value in request.args.items()),
            constexprs={n: write_const(value) for n, value in request.constexprs.items()},
            options=dict(request.options),
            source=info.source,
            source_sha256=info.source_sha256,
            bundle=bundle.digest,
            specs=dict(bundle.manifest.provenance.specs),
            shared=shared,
        )


def _seen(name: str, value: PointerValue | Number) -> ArgSeen:
    if isinstance(value, PointerValue):
        return PointerSeen(name=name, dtype=value.dtype, align=1 if value.aligned is False else 16)
    if isinstance(value, float):
        return FloatSeen(name=name, fits=float_range(value))
    seen = BoolSeen if isinstance(value, bool) else IntSeen
    return seen(name=name, low=int(value), high=int(value), claim=claim_of(value))


def _without_shared_limit(request: Request) -> Request:
    return Request(
        kernel=request.kernel,
        args=request.args,
        constexprs=request.constexprs,
        options=request.options,
        capability=request.capability,
        max_shared=_NO_SHARED_LIMIT,
    )


def append(path: str, data: bytes, *, wait: bool = True) -> bool:
    """Append whole lines, never between those of another process. False where it stays locked
    (for 50 ms, if ``wait``).

    Raises ``OSError`` where the file cannot be written; then nothing of ``data`` is in it.
    """
    # Not to wait for a reader, if the path is a pipe.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    file = os.open(path, flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(None, "it is no regular file")
        for attempt in reversed(range(_LOCK_TRIES if wait else 1)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A process that was stopped may hold the lock for ever, and a service must not wait.
                if not attempt:
                    return False
                time.sleep(_LOCK_PAUSE)
        size = os.fstat(file).st_size
        if data and size and os.pread(file, 1, size - 1) != b"\n":
            # A writer that was killed leaves a line without its end. Anything else is not ours to remove.
            start = _last_line(file, size)
            if os.pread(file, len(_BEGIN), start) in (_BEGIN, _BEGIN[: size - start]):
                os.ftruncate(file, start)
                size = start
            else:
                data = b"\n" + data
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)
    return True


def _last_line(file: int, size: int) -> int:
    """Where the last line of a file starts."""
    while size:
        start = max(0, size - 65536)
        found = os.pread(file, size - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0
