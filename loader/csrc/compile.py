"""Compile the native launcher: ``python loader/csrc/compile.py [OUTPUT]``, or from the build of a wheel.

Needs a C compiler (``CC``, else ``cc`` or ``gcc``) and Python's own headers, nothing of torch or CUDA.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "_native.abi3.so"

FLAGS = (
    "-std=c11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Wno-cast-function-type",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
)


def compiler() -> list[str] | None:
    """The command of the C compiler, or None where there is none."""
    named = os.environ.get("CC")
    if named:
        return shlex.split(named)
    found = shutil.which("cc") or shutil.which("gcc")
    return None if found is None else [found]


def compile_launcher(output: Path = OUTPUT, *extra: str) -> str | None:
    """Compile into ``output``. Return None, or why it could not be done. ``extra`` are further flags."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no GIL, and no stable ABI either; calls take the way through Python"
    command = compiler()
    if command is None:
        return "found no C compiler (cc or gcc, or the one that CC names)"
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").is_file():
        return f"{include}: found no Python.h, wanted Python's headers (python3-dev)"
    sources = [str(path) for path in sorted(HERE.glob("*.c"))]
    # A process that has the old file loaded keeps it: the new one takes its name at the end.
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        made = Path(folder, output.name)
        done = subprocess.run(
            [*command, *FLAGS, *extra, f"-I{include}", *sources, "-o", str(made), "-ldl"],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return f"{command[0]} failed:\n{done.stderr}"
        made.replace(output)
    return None


if __name__ == "__main__":
    fault = compile_launcher(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)
    if fault is not None:
        sys.exit(f"the native launcher was not built: {fault}")
