"""Importing costs nothing: no heavy module, no driver, no file. Checked in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bundlemaker import Draft, make_bundle, pointer, variant

HEAVY = ("torch", "triton", "yaml", "click", "rich", "elftools", "numpy", "cuda", "msgspec")

REPORT = """
import json, sys
with open("/proc/self/maps") as file:
    maps = file.read()
print(json.dumps({"modules": sorted(sys.modules), "libcuda": "libcuda" in maps}))
"""


def after(code: str, *args: str, flags: tuple[str, ...] = ()) -> tuple[set[str], bool]:
    """Run code in a new process; return which heavy modules it then has, and whether a driver is mapped."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code + REPORT, *args], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    return {name for name in HEAVY if name in report["modules"]}, report["libcuda"]


@pytest.mark.parametrize("module", ["aot", "aot.loader"])
@pytest.mark.parametrize("flags", [(), ("-O",), ("-OO",), ("-W", "error")])
def test_import_alone(module: str, flags: tuple[str, ...]) -> None:
    """Field case C09."""
    assert after(f"import {module}", flags=flags) == (set(), False)


def test_every_public_name_is_there() -> None:
    code = "import aot.loader as l\nassert all(getattr(l, n) for n in l._LAZY)\n"
    assert after(code) == ({"msgspec"}, False)
    code = (
        "import aot\npublic = [n for n in dir(aot) if not n.startswith('__')]\n"
        "assert public == ['Bundle', 'fallback', 'open', 'ops', 'override', 'override_all', "
        "'prometheus', 'record', 'stats', 'use'], public\naot.open, aot.use\n"
        "from aot import Bundle, use, open as opened\n"
    )
    assert after(code) == (set(), False)


def test_opening_a_bundle_touches_no_driver(tmp_path: Path) -> None:
    """Field cases C09 and C29: open, list, ask for a kernel: neither libcuda nor Triton nor torch, and the
    decoder for the kernel alone."""
    path = make_bundle(tmp_path / "b", Draft(variants=[variant(pointer("x"))]))
    code = "import sys, aot\nb = aot.open(sys.argv[1]); b.kernels; b.targets; aot.use(b); b.stats()\n"
    assert after(code, str(path)) == (set(), False)
    assert after(code + "b.kernel('k')\n", str(path)) == ({"msgspec"}, False)


def test_import_writes_nothing(tmp_path: Path) -> None:
    """Field case C05: no home, nothing written, no variable set."""
    code = (
        "import os; before = dict(os.environ)\nimport aot.loader; aot.loader.open\n"
        "assert os.environ == before\n"
    )
    env = {"PATH": "", "HOME": str(tmp_path / "none"), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
