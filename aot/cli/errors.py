"""How the command line ends: every expected error is a line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from aot.errors import AotError


def run(cli: click.Command, args: Sequence[str] | None) -> int:
    """Run a command and return its exit code. Only a bug of ours gives a traceback."""
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
    except BrokenPipeError:
        # The reader of our output went away (``aot ls … | head``). Nothing may be flushed there at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"aot: {place}{error.strerror or error}", file=sys.stderr)
        return 1
