"""The tutorial's files and commands, run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES = {m[1]: m[2] for m in re.finditer(r"^```\w+ file=(\S+)\n(.*?)^```", TEXT, re.S | re.M)}
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```", TEXT, re.S | re.M)
    for line in block.splitlines()
    if line.startswith("$ ")
]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one ``aot …`` line of the tutorial with this interpreter's ``aot``."""
    program = Path(sys.executable).with_name("aot")
    return subprocess.run(
        command.replace("aot ", f"{program} ", 1),
        shell=True,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command prints, in the tutorial's order, in a folder with the tutorial's files."""
    folder = tmp_path_factory.mktemp("tutorial")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    printed = {}
    for command in COMMANDS:
        done = run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed[command.split()[1]] = done.stdout
    return printed


def test_the_tutorial_has_all_its_steps(outputs: dict[str, str]) -> None:
    """Kernel, spec and launch script; plan, build, ls, verify and explain."""
    assert set(FILES) == {"add_rms_norm.py", "add_rms_norm.yaml", "serve.py"}
    assert list(outputs) == ["plan", "build", "ls", "verify", "explain"]


def test_plan_names_the_hole_that_the_text_shows(outputs: dict[str, str]) -> None:
    """The line in the text is one that the command prints."""
    shown = re.search(r"^hole: .*$", TEXT, re.M)
    assert shown is not None
    assert shown[0] in outputs["plan"].splitlines()


def test_verify_and_explain_say_what_the_text_says(outputs: dict[str, str]) -> None:
    """144 sound variants; a call of 3000 columns gets the bucket of 4096."""
    assert "bundle: sound, 144 variants" in outputs["verify"]
    assert len(outputs["ls"].splitlines()) == 145
    assert re.search(r"n_cols=4096 .*: chosen$", outputs["explain"], re.M)
    assert "n_cols = 3000 is over the bucket's bound 1024" in outputs["explain"]
