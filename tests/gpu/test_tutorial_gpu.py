"""The tutorial's last step on the card: a stranger's kernel, launched without Triton.

Its bundle is in dist/tutorial, where ``make bundle-gpu-tests`` puts it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tutorial

FOLDER = Path(os.environ.get("AOT_TUTORIAL_PATH", "dist/tutorial"))


@pytest.mark.no_launch  # It launches in a process of its own, and asserts that it did.
def test_serve(tmp_path: Path, passed: Any) -> None:
    """serve.py compares 12 launches with fp64 and prints how many there were."""
    tutorial.write_files(tmp_path)
    (tmp_path / "bundle").symlink_to(FOLDER.resolve() / "bundle")
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "serve.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "launches 12\n"
    passed("add_rms_norm", "float16, bfloat16, float32", "tutorial")
