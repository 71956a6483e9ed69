"""Which bundles serve a call that names none, in which order, and what was left out and why.

The order: the bundle of :func:`use`; each entry of ``AOT_BUNDLE_PATH``, left to right; the entry
points of group ``aot.bundles``, by name. Each step is taken when a call first needs it: while
the bundles before it serve everything, no variable is read and no package is looked at.
What a step found is kept until :func:`use` or :func:`refresh`.

A bundle that cannot be read is left out: a line of the log and a :class:`BundleDecision`, and
an error only where nothing else is left.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aot.errors import BundleError, KernelMiss, NoBundleError
from aot.loader import native, record
from aot.loader.bundle import Bundle
from aot.loader.sources import GROUP, VARIABLE, Candidate, from_entry_points, from_variable

if TYPE_CHECKING:
    from aot.loader.kernel import Kernel

USED = "aot.use"
_NOTHING: AbstractContextManager[None] = nullcontext()

_log = logging.getLogger("aot")
T = TypeVar("T")


class BundleDecision(NamedTuple):
    """One place that was looked at: ``source`` named it, ``path`` is the bundle, and ``reason`` says
    why it is left out, or is None where it serves. ``duplicate``: it serves through a place before."""

    source: str
    path: str
    reason: str | None
    duplicate: bool = False

    def __str__(self) -> str:
        return f"{self.source}: {self.path if self.reason is None else self.reason}"


class _Step(NamedTuple):
    bundles: tuple[Bundle, ...]
    decisions: tuple[BundleDecision, ...]


_STEPS: tuple[Callable[[], Iterator[Candidate]], ...] = (from_variable, from_entry_points)


class _Search:
    """One search: the steps that were taken so far, in order."""

    def __init__(self, used: Bundle | None) -> None:
        self.used = used
        first = _Step((), ())
        if used is not None:
            first = _Step((used,), (BundleDecision(source=USED, path=str(used.reader.path), reason=None),))
        self.steps = [first]

    def bundles(self) -> Iterator[Bundle]:
        """The bundles in order, taking each step when it is reached."""
        for index in range(1 + len(_STEPS)):
            yield from self._step(index).bundles

    def decisions(self) -> tuple[BundleDecision, ...]:
        """Every decision, in order, with all steps taken."""
        return tuple(d for index in range(1 + len(_STEPS)) for d in self._step(index).decisions)

    def _step(self, index: int) -> _Step:
        if index < len(self.steps):
            return self.steps[index]
        if getattr(_thread, "looking", False):
            # A package's code, asked for its bundle, asks for a kernel: it gets what comes before it.
            return _Step((), ())
        # No lock is held meanwhile: that code may import, and imports have locks of their own.
        _thread.looking = True
        try:
            step = self._take(_STEPS[index - 1])
        finally:
            _thread.looking = False
        with _lock:
            if index < len(self.steps):
                return self.steps[index]
            before = [bundle for taken in self.steps for bundle in taken.bundles]
            self.steps.append(step)
        _log_step(step, before)
        return step

    def _take(self, look: Callable[[], Iterator[Candidate]]) -> _Step:
        bundles: list[Bundle] = []
        decisions: list[BundleDecision] = []
        seen = {_real(d.path): d.source for step in self.steps for d in step.decisions if d.reason is None}
        for candidate in look():
            reason, duplicate = candidate.reason, False
            if reason is None:
                try:
                    real = _real(candidate.path)
                    duplicate = real in seen
                    if duplicate:
                        reason = f"{candidate.path}: this bundle was found before, through {seen[real]}"
                    else:
                        bundles.append(_open(real, candidate.path))
                        seen[real] = candidate.source
                except (BundleError, OSError, ValueError) as error:
                    reason = str(error)
            decisions.append(
                BundleDecision(
                    source=candidate.source, path=candidate.path, reason=reason, duplicate=duplicate
                )
            )
        return _Step(tuple(bundles), tuple(decisions))


_thread = threading.local()
_lock = threading.Lock()
_search = _Search(None)
_opened: dict[str, Bundle] = {}


def use(bundle: Bundle | str | os.PathLike[str]) -> Bundle:
    """Make ``bundle``, or the bundle in that directory, the first that is asked; return it.

    It takes the place of the one before, which stays open, because other threads may be using
    it. The bundles of ``AOT_BUNDLE_PATH`` and of installed packages come after it and are looked
    for again. Raises ``BundleError`` where the directory holds no sound bundle.
    """
    opened = bundle if isinstance(bundle, Bundle) else _open(_real(bundle), bundle)
    _restart(opened)
    return opened


def refresh() -> None:
    """Look for bundles again at the next call: after ``AOT_BUNDLE_PATH`` changed, a package was
    installed or a bundle was replaced. The bundle of :func:`use` stays the first."""
    _restart(_search.used)


def _restart(used: Bundle | None) -> None:
    global _search
    with _lock:
        _search = _Search(used)
    # Calls that were prepared for the bundles before go on with them no longer.
    native.invalidate()


def default_bundle() -> Bundle:
    """Return the bundle that is asked first.

    Raises ``NoBundleError``, which lists every decision, where there is none.
    """
    search = _search
    for bundle in search.bundles():
        return bundle
    raise _none_left(search)


def default_bundles() -> tuple[Bundle, ...]:
    """Return all bundles in the order in which they are asked.

    Raises ``NoBundleError``, which lists every decision, where there is none.
    """
    search = _search
    found = tuple(search.bundles())
    if not found:
        raise _none_left(search)
    return found


def decisions() -> tuple[BundleDecision, ...]:
    """Return what was looked at, in order, and why what is left out is; raises nothing."""
    return _search.decisions()


def find_kernels(name: str) -> Iterator[Kernel]:
    """The kernels ``name`` of the default bundles, in order; a later bundle is opened only when it is
    reached. Raises ``NoBundleError`` where there is no bundle, ``KernelMiss`` where none has the kernel."""
    search = _search
    asked: list[Bundle] = []
    found = False
    for bundle in search.bundles():
        asked.append(bundle)
        if name in bundle.reader.kernels:
            found = True
            yield bundle.kernel(name)
    if not asked:
        raise _none_left(search)
    if not found:
        from aot.loader import miss

        raise miss.unknown_kernel(name, [bundle.reader for bundle in asked])


def serve(name: str, call: Callable[[Kernel], T]) -> T:
    """Return ``call(kernel)`` for the first default bundle's kernel ``name`` that does not miss.

    Raises ``KernelMiss`` with what every bundle said where all miss, and what :func:`find_kernels`
    raises.
    """
    misses: list[KernelMiss] = []
    with record.OneMiss() if record.misses is not None else _NOTHING:
        for kernel in find_kernels(name):
            try:
                return call(kernel)
            except KernelMiss as error:
                misses.append(error)
        from aot.loader import miss

        raise miss.merged(name, misses)


def _none_left(search: _Search) -> NoBundleError:
    looked = search.decisions()
    if not looked:
        return NoBundleError(
            f"found no bundle: {VARIABLE} is not set, aot.use was not called and no installed package has an "
            f'entry point of group {GROUP}; wanted aot.use("path/to/bundle"), or the path in that variable'
        )
    lines = "".join(f"\n  {decision}" for decision in looked)
    return NoBundleError(f"found no bundle that can be used, wanted one; looked at:{lines}")


def _log_step(step: _Step, before: list[Bundle]) -> None:
    for decision in step.decisions:
        if decision.reason is None:
            _log.info("bundle found through %s", decision)
        elif decision.duplicate:
            _log.info("bundle named again: %s", decision)
        else:
            _log.warning("bundle left out: %s", decision)
    for bundle in step.bundles:
        for earlier in before:
            shared = [name for name in bundle.kernels if name in earlier.reader.kernels]
            if shared:
                _log.info(
                    "%s is asked after %s for kernels that both have: %s",
                    bundle.reader.path,
                    earlier.reader.path,
                    ", ".join(shared),
                )
        before.append(bundle)


def _open(real: str, path: str | os.PathLike[str]) -> Bundle:
    """Open a bundle, or return the open one of the same place and contents: searching again must not
    leave another set of open files behind each time."""
    opened = Bundle(path)
    with _lock:
        before = _opened.get(real)
        if before is None or before._closed or before.reader.digest != opened.reader.digest:
            _opened[real] = opened
            return opened
    opened.close()
    return before


def _real(path: str | os.PathLike[str]) -> str:
    return os.path.realpath(path)
