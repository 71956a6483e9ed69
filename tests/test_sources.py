"""The hash of a kernel's sources: every file that it reaches, and nothing of where they lie."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aot.build.sources import closure_sha256
from aot.errors import UsageError


def tree(root: Path, **files: str) -> Path:
    """Write files given as ``a__b="text"`` (``a/b.py``) and return the folder."""
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def sha256(path: Path) -> str:
    """The hash as a new process would find it."""
    closure_sha256.cache_clear()
    return closure_sha256(str(path))


@pytest.mark.parametrize(
    "line", ["import helper", "from helper import f", "from .helper import f", "from . import helper as h"]
)
def test_a_helper_counts_however_it_is_imported(tmp_path: Path, line: str) -> None:
    tree(tmp_path, kernels=f"def g():\n    {line}\n", helper="f = 1\n", other="")
    before = sha256(tmp_path / "kernels.py")
    tree(tmp_path, other="changed = 1\n")
    assert sha256(tmp_path / "kernels.py") == before
    tree(tmp_path, helper="f = 2\n")
    assert sha256(tmp_path / "kernels.py") != before


def test_helpers_of_one_name_in_sibling_packages(tmp_path: Path) -> None:
    """Each of two ``common.py`` outside the kernel's own folder counts."""
    inits = {f"{name}__init__": "" for name in ("p__", "p__kernels__", "p__a__", "p__b__")}
    source = "from ..a.common import x\nfrom ..b.common import y\n"
    tree(tmp_path, **inits, p__kernels__k=source, p__a__common="x = 1\n", p__b__common="y = 1\n")
    kernel = tmp_path / "p" / "kernels" / "k.py"
    seen = {sha256(kernel)}
    tree(tmp_path, p__a__common="x = 2\n")
    seen.add(sha256(kernel))
    tree(tmp_path, p__b__common="y = 2\n")
    seen.add(sha256(kernel))
    assert len(seen) == 3


def test_the_folder_and_its_name_count_for_nothing(tmp_path: Path) -> None:
    """Field case C19."""
    tree(tmp_path / "one", kernels="from .sub import helper\nimport kernels\n", sub__helper="x = 1\n")
    shutil.copytree(tmp_path / "one", tmp_path / "two" / "deeper")
    assert sha256(tmp_path / "one" / "kernels.py") == sha256(tmp_path / "two" / "deeper" / "kernels.py")


@pytest.mark.parametrize("text", ["def f(:\n", "x = " + "(" * 5000 + ")" * 5000, "\0"])
def test_a_helper_that_does_not_parse(tmp_path: Path, text: str) -> None:
    tree(tmp_path, kernels="import helper\n", helper=text)
    with pytest.raises(UsageError, match=r"helper\.py: cannot read this source: "):
        sha256(tmp_path / "kernels.py")


def test_invalid_escapes_do_not_warn(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    tree(tmp_path, kernels=r"x = '\d'")
    sha256(tmp_path / "kernels.py")
    assert not recwarn.list
