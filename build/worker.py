"""What runs inside a worker process: say which compiler this is, then compile job after job."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

from aot.build.jobs import CompileJob, Failed, Toolchain
from aot.errors import AotError

# The only settings of Triton's that a build takes from its environment.
PTXAS_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


def main(pipe: Connection, cache_dir: str, targets: tuple[str, ...], ptxas: dict[str, str]) -> None:
    """Serve jobs from ``pipe`` until it closes. The first message is a ``Toolchain`` or a ``Failed``."""
    # Ctrl-C goes to the whole process group; the parent alone decides what stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A kernel module that prints must not spoil the parent's output, which may be JSON.
    os.dup2(2, 1)
    try:
        pipe.send(_start(cache_dir, targets, ptxas))
        while True:
            job = pipe.recv()
            if not isinstance(job, CompileJob):
                return
            pipe.send(_compile(job))
    except (EOFError, BrokenPipeError):
        return


def _start(cache_dir: str, targets: tuple[str, ...], ptxas: dict[str, str]) -> Toolchain | Failed:
    try:
        from aot.build import backend

        backend.prepare_process(cache_dir, ptxas)
        return backend.toolchain(targets)
    except AotError as error:
        return Failed(error=str(error))
    except ImportError as error:
        return Failed(
            error=f"cannot import the compiler: {error}; install it with: pip install 'aot-kernels[build]'"
        )


def _compile(job: CompileJob) -> object:
    from aot.build import backend

    return backend.compile_job(job)
