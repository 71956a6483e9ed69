"""A pool of compiler processes: one job at a time each, a time limit for each job.

A worker that dies or overruns is replaced and its job is a failure like any other.
Workers start by forkserver, so that none inherits the parent's threads or CUDA state.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from aot.build import worker
from aot.build.jobs import CompileJob, Failed, Result, Toolchain
from aot.errors import BuildError

Progress = Callable[[CompileJob, Result], None]

START_SECONDS = 120.0


class _Worker:
    def __init__(self, cache_dir: str, targets: tuple[str, ...]) -> None:
        context = multiprocessing.get_context("forkserver")
        # Triton is imported once, in the server: a worker then starts in milliseconds.
        context.set_forkserver_preload(["aot.build.backend"])
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        # The server keeps the environment of the first build of this process; this one's is passed on.
        ptxas = {name: os.environ[name] for name in worker.PTXAS_VARIABLES if name in os.environ}
        self.process: BaseProcess = context.Process(
            target=worker.main, args=(theirs, cache_dir, targets, ptxas), daemon=True
        )
        with _utf8_mode():
            self.process.start()
        theirs.close()
        self.job: CompileJob | None = None
        self.deadline = time.monotonic() + START_SECONDS

    def give(self, job: CompileJob, seconds: float) -> None:
        self.job = job
        self.deadline = time.monotonic() + seconds
        self.pipe.send(job)

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


@contextmanager
def _utf8_mode() -> Iterator[None]:
    """Start Python in UTF-8 mode: Triton cannot handle paths that an ASCII locale could not decode."""
    before = os.environ.get("PYTHONUTF8")
    os.environ["PYTHONUTF8"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONUTF8"]
        else:
            os.environ["PYTHONUTF8"] = before


class Pool:
    """``size`` workers that compile for ``targets``. Use :func:`pool`, which starts and ends it."""

    def __init__(self, size: int, targets: tuple[str, ...], cache_dir: str) -> None:
        self._size = size
        self._targets = targets
        self._cache_dir = cache_dir
        self._workers: list[_Worker] = []

    def start(self) -> Toolchain:
        """Start the first worker and return the compiler it found. Raises ``BuildError``."""
        first = self._spawn()
        if not first.pipe.poll(START_SECONDS):
            raise BuildError(f"a compiler process did not start within {START_SECONDS:.0f} s")
        hello = self._receive(first)
        if isinstance(hello, Toolchain):
            return hello
        raise BuildError(hello.error if isinstance(hello, Failed) else "a compiler process is out of step")

    def run(self, jobs: Sequence[CompileJob], timeout: float, progress: Progress) -> dict[str, Result]:
        """Compile ``jobs`` and return their results by key; ``timeout`` is seconds for each job."""
        # The longest wait at the end is for a job begun last; popping from the end keeps order.
        pending = list(reversed(jobs))
        results: dict[str, Result] = {}

        def finish(job: CompileJob, result: Result) -> None:
            results[job.key] = result
            progress(job, result)

        while len(results) < len(jobs):
            for idle in [w for w in self._workers if w.job is None and w.deadline == 0.0]:
                if pending:
                    idle.give(pending.pop(), timeout)
            busy = [w for w in self._workers if w.job is not None or w.deadline]
            if pending and len(self._workers) < self._size:
                busy.append(self._spawn())
            soonest = min(w.deadline for w in busy)
            ready = wait([w.pipe for w in busy], timeout=max(0.0, soonest - time.monotonic()))
            for w in busy:
                if w.pipe in ready:
                    job = w.job
                    result = self._receive(w)
                    if job is not None:
                        finish(
                            job, result if not isinstance(result, Toolchain) else Failed(error="out of step")
                        )
                    elif isinstance(result, Failed):
                        raise BuildError(result.error)
                elif time.monotonic() >= w.deadline:
                    job = w.job
                    self._replace(w)
                    if job is None:
                        raise BuildError(f"a compiler process did not start within {START_SECONDS:.0f} s")
                    finish(job, Failed(error=f"found no result after {timeout:g} s, the process was stopped"))
        return results

    def _spawn(self) -> _Worker:
        started = _Worker(self._cache_dir, self._targets)
        self._workers.append(started)
        return started

    def _replace(self, w: _Worker) -> None:
        w.stop()
        self._workers.remove(w)

    def _receive(self, w: _Worker) -> Result | Toolchain:
        try:
            message: Result | Toolchain = w.pipe.recv()
        except (EOFError, OSError):
            w.process.join(5)
            code = w.process.exitcode
            self._replace(w)
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            return Failed(error=f"the compiler process ended {how}")
        w.job, w.deadline = None, 0.0
        return message

    def stop(self) -> None:
        """End every worker at once."""
        for w in self._workers:
            w.stop()
        self._workers.clear()


@contextmanager
def pool(size: int, targets: tuple[str, ...]) -> Iterator[Pool]:
    """A pool whose workers and temporary files are gone when the block ends, however it ends."""
    cache_dir = tempfile.mkdtemp(prefix="aot-build-")
    made = Pool(size, targets, cache_dir)
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(cache_dir, ignore_errors=True)
