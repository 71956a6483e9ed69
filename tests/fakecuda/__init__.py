"""The fake CUDA driver of the tests: compile ``libcuda.c``, run Python code against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aot

SOURCE = Path(__file__).with_name("libcuda.c")
ROOT = str(Path(aot.__file__).parent.parent)

# Every script starts with these: a bundle's path, and arrays that stand for CUDA tensors.
PRELUDE = """
import json, os, sys, types
import aot
from aot.errors import *

class Array:
    '''Stands for a CUDA tensor: an address on a device, and a dtype.'''
    def __init__(self, dtype="float32", offset=4096, device=0):
        self.dtype, self.address = dtype, ((device + 1) << 40) + offset
        self.device = types.SimpleNamespace(type="cuda", index=device)
    def data_ptr(self):
        return self.address

def error(function, *args, **kwargs):
    '''The type and message of what a call raises.'''
    try:
        function(*args, **kwargs)
    except Exception as raised:
        return [type(raised).__name__, str(raised)]
    return None

PATH = sys.argv[1]
def answer(value):
    print(json.dumps(value))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a script answered, and what the driver was asked."""

    value: Any
    calls: list[dict[str, Any]]
    stderr: str

    def named(self, call: str) -> list[dict[str, Any]]:
        """The recorded calls of one name."""
        return [c for c in self.calls if c["call"] == call]

    @property
    def launches(self) -> list[dict[str, Any]]:
        """The launches that the driver accepted."""
        return [c for c in self.calls if c["call"].startswith("cuLaunchKernel") and "symbol" in c]


def compile_driver(folder: Path) -> Path:
    """Compile the fake driver into ``folder`` and return the folder, for LD_LIBRARY_PATH."""
    library = folder / "libcuda.so.1"
    command = ["gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    done = subprocess.run(
        [*command, "-o", str(library), str(SOURCE), "-ldl", "-lpthread"], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"gcc cannot compile {SOURCE.name}:\n{done.stderr}")
    return folder


def run_script(
    folder: Path,
    script: str,
    bundle: Path,
    *,
    python: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    **fake: str,
) -> Run:
    """Run ``script`` in a process of its own, with the fake driver in ``folder``, and return its answer.

    ``python`` are flags of the interpreter, ``env`` environment variables; further keywords are
    those of the fake driver: ``devices``, ``driver_version``, ``fail``, ``capturing``.
    """
    log = folder / f"log-{os.getpid()}"
    log.write_text("")
    variables = dict(os.environ) | {"LD_LIBRARY_PATH": str(folder), "FAKECUDA_LOG": str(log)}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    variables.pop("AOT_BUNDLE_PATH", None)
    variables.update({f"FAKECUDA_{name.upper()}": value for name, value in fake.items()})
    done = subprocess.run(
        [sys.executable, *python, "-c", PRELUDE + textwrap.dedent(script), str(bundle)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=variables | dict(env or {}),
        timeout=120,
    )
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    value = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None
    return Run(value=value, calls=calls, stderr=done.stderr)
