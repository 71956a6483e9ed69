"""Fixtures that several files use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, make_bundle
from fakecuda import Run, compile_driver, run_script
from loaderscripts import Runner


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled fake driver."""
    return compile_driver(tmp_path_factory.mktemp("fakecuda"))


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> Runner:
    """Make a bundle of drafts and run a script with it."""

    def runner(script: str, *drafts: Draft, **how: Any) -> Run:
        path = tmp_path / "bundle"
        make_bundle(path, *drafts)
        return run_script(driver, script, path, **how)

    return runner
