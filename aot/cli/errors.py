"""How the command line ends: every expected error is a line on stderr and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from aot.errors import AotError

# What ``pip install 'aot-kernels[build]'`` brings, by the name that is imported.
_OPTIONAL = ("elftools", "triton", "yaml")


class _Ended(BaseException):
    """The process was told to end. A ``BaseException``: nothing on the way up may take it for an error."""

    def __init__(self, number: int) -> None:
        self.number = number


def run(cli: click.Command, args: Sequence[str] | None) -> int:
    """Run a command and return its exit code. Only a bug of ours gives a traceback.

    SIGTERM and SIGHUP end it as Ctrl-C does, with workers and temporary files gone; the code
    is then 128 and the signal's number, as a shell gives it.
    """
    _usable_streams()
    try:
        with _ended_by_signals():
            return _run(cli, args)
    except _Ended as end:
        print("aot: stopped", file=sys.stderr)
        return 128 + end.number


def _run(cli: click.Command, args: Sequence[str] | None) -> int:
    try:
        code = cli.main(args=list(args) if args is not None else None, prog_name="aot", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        print("aot: stopped", file=sys.stderr)
        return 1
    except AotError as error:
        for line in str(error).splitlines():
            print(f"aot: {line}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL:
            raise
        print(
            f"aot: found no {error.name}, which this command needs; "
            "install it with: pip install 'aot-kernels[build]'",
            file=sys.stderr,
        )
        return 2
    except BrokenPipeError:
        # The reader of our output went away (``aot ls … | head``). Nothing may be flushed there at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"aot: {place}{error.strerror or error}", file=sys.stderr)
        return 1


def _usable_streams() -> None:
    """Give the process an output that takes every character, and one where it was started without any."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Closed by the parent (``>&-``): what is printed has no reader, and that is no error.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # A path may hold characters that the locale cannot write, and bytes that are none.
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise _Ended(number)

    taken = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        # One that is ignored stays so: that is how nohup works.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
