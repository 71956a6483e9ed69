"""The C API of ``include/aot.h`` for tests: compile it, and talk to the program ``probe.c`` around it."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
INCLUDE = HERE.parent.parent / "include"
EXAMPLE = INCLUDE / "example" / "sum_rows.c"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
RACES = ("-fsanitize=thread", "-g", "-O1")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
C11 = ("gcc", "-std=c11")
CXX17 = ("g++", "-x", "c++", "-std=c++17")


def compiled(source: Path, program: Path, *flags: str, compiler: Sequence[str] = C11) -> Path:
    """Compile ``source`` to ``program``, any warning being an error; return the program."""
    command = [*compiler, *WARNINGS, *flags, "-I", str(INCLUDE), str(source), "-o", str(program)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return program


@functools.cache
def probe_program(*flags: str) -> Path:
    """The probe under sanitizers, compiled once a process."""
    folder = Path(tempfile.mkdtemp(prefix="aot-capi-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return compiled(HERE / "probe.c", folder / "probe", *flags)


class Probe:
    """A running ``probe.c``. Each call is a command; what it answers is a list of fields.

    A crash, or a complaint of a sanitizer, fails the call that caused it, or :meth:`close`.
    """

    def __init__(self, sanitizers: Sequence[str] = SANITIZERS, **env: str) -> None:
        self._process = subprocess.Popen(
            [probe_program(*sanitizers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | env,
        )

    def __call__(self, *fields: object) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(map(str, fields)).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().decode()
        if not line.endswith("\n"):
            self.close()
            raise AssertionError(f"the program ended at {fields}")
        return [field.replace("\\n", "\n").replace("\\\\", "\\") for field in line[:-1].split("\t")]

    def fault(self, *fields: object) -> str:
        """The text of the error that a command answers with."""
        answer = self(*fields)
        assert answer[0] == "error", answer
        return answer[-1]

    def line(self) -> list[str]:
        """One more line of an answer."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode()[:-1].split("\t")

    def close(self) -> None:
        """End the program, which must leave no memory behind."""
        _, stderr = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, stderr.decode(errors="replace")

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._process.kill()
            self._process.wait()


def number(value: Any) -> str:
    """A Python number, string or None as the probe reads it."""
    if value is None:
        return "n:"
    if isinstance(value, bool):
        return f"b:{int(value)}"
    if isinstance(value, int):
        return f"i:{value}" if value < 2**63 else f"u:{value}"
    if isinstance(value, float):
        return f"f:{value.hex()}"
    return f"s:{value}"
