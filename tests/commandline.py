"""The command line as a user runs it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

AOT = (sys.executable, "-m", "aot.cli")


def aot(*args: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line; ``env`` is added to the environment."""
    return subprocess.run(
        [*AOT, *map(str, args)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
