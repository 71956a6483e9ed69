"""The command line: ``aot plan``, ``build``, ``ls``, ``explain``, ``verify``, ``doctor``, ``spec``.

Exit codes: 0 done; 1 the work or the check failed; 2 bad usage or bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Errors go to stderr as one sentence, never a traceback."""
    try:
        from aot.cli.commands import cli
        from aot.cli.errors import run
    except ModuleNotFoundError as error:
        # The base install has none of the packages that this needs, and click is the first.
        if error.name not in ("click", "rich"):
            raise
        words = list(sys.argv[1:] if args is None else args)
        if words in (["doctor"], ["doctor", "--json"]):
            # A service has the base install alone, and this is the command that is for it.
            from aot.cli import diagnosis

            sys.exit(diagnosis.run(as_json=len(words) == 2))
        print(
            f"aot: found no {error.name}, which the command line needs; "
            "install it with: pip install 'aot-kernels[build]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        print("aot: stopped", file=sys.stderr)
        sys.exit(1)
    sys.exit(run(cli, args))
