"""The files and commands of docs/tutorial.md. ``python -m tests.tutorial DIR`` does steps 1 to 5 in DIR."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES = {m[1]: m[2] for m in re.finditer(r"^```\w+ file=(\S+)\n(.*?)^```", TEXT, re.S | re.M)}


def commands(kind: str) -> list[str]:
    """The ``$`` lines of the blocks marked ``console`` (kind "") or ``console gpu`` (kind " gpu")."""
    blocks = re.findall(rf"^```console{kind}\n(.*?)^```", TEXT, re.S | re.M)
    return [line.removeprefix("$ ") for text in blocks for line in text.splitlines() if line.startswith("$ ")]


def write_files(folder: Path) -> None:
    """Save the tutorial's files in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command of the tutorial in ``folder``, with this interpreter's ``aot`` or ``python``."""
    program, *args = shlex.split(command)
    python = {"aot": [sys.executable, "-m", "aot.cli"], "python": [sys.executable]}[program]
    return subprocess.run([*python, *args], cwd=folder, capture_output=True, text=True, timeout=600)


def main() -> None:
    """Do the steps that need no GPU, and exit with 1 where one fails."""
    folder = Path(sys.argv[1])
    write_files(folder)
    for command in commands(""):
        done = run(command, folder)
        print(f"$ {command}\n{done.stdout}{done.stderr}", end="")
        if done.returncode:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
