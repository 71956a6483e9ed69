"""The tutorial's files and commands, run as a reader would run them."""

from __future__ import annotations

import re

import pytest
import tutorial

# The commands run once: one worker of pytest-xdist takes all of these tests.
pytestmark = pytest.mark.xdist_group("tutorial")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command prints, in the tutorial's order, in a folder with the tutorial's files."""
    folder = tmp_path_factory.mktemp("tutorial")
    tutorial.write_files(folder)
    printed = {}
    for command in tutorial.commands(""):
        done = tutorial.run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed[command.split()[1]] = done.stdout
    return printed


def test_the_tutorial_has_all_its_steps(outputs: dict[str, str]) -> None:
    """Kernel, spec and launch script; plan, build, ls, verify and explain; and the launch on a GPU."""
    assert set(tutorial.FILES) == {"add_rms_norm.py", "add_rms_norm.yaml", "serve.py"}
    assert list(outputs) == ["plan", "build", "ls", "verify", "explain"]
    assert tutorial.commands(" gpu") == ["python serve.py"]


def test_plan_names_the_hole_that_the_text_shows(outputs: dict[str, str]) -> None:
    """The line in the text is one that the command prints."""
    shown = re.search(r"^hole: .*$", tutorial.TEXT, re.M)
    assert shown is not None
    assert shown[0] in outputs["plan"].splitlines()


def test_verify_and_explain_say_what_the_text_says(outputs: dict[str, str]) -> None:
    """144 sound variants; a call of 3000 columns gets the bucket of 4096."""
    assert "bundle: sound, 144 variants" in outputs["verify"]
    assert len(outputs["ls"].splitlines()) == 145
    assert re.search(r"n_cols=4096 .*: chosen$", outputs["explain"], re.M)
    assert "n_cols = 3000 is over the bucket's bound 1024" in outputs["explain"]
