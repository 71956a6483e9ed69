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


# The modules whose subject is the call path itself run against both launchers; others meet one.
BOTH_LAUNCHERS = ("test_loader_", "test_preload")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Which launchers a test's scripts run with."""
    if "run" in metafunc.fixturenames:
        both = metafunc.module.__name__.startswith(BOTH_LAUNCHERS)
        metafunc.parametrize("run", ["native", "python"] if both else ["native"], indirect=True)


@pytest.fixture
def run(request: pytest.FixtureRequest, driver: Path, tmp_path: Path) -> Runner:
    """Make a bundle of drafts and run a script with it: by the native launcher, and by cuda-bindings."""

    def runner(script: str, *drafts: Draft, **how: Any) -> Run:
        path = tmp_path / "bundle"
        make_bundle(path, *drafts)
        env = {"AOT_NATIVE": "1" if request.param == "native" else "0"} | how.pop("env", {})
        return run_script(driver, script, path, env=env, **how)

    return runner


@pytest.fixture(scope="session")
def reductions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every shipped reduction of a few dtypes for sm_90, without code."""
    from cputensors import reductions_without_code

    folder = tmp_path_factory.mktemp("reductions") / "bundle"
    return reductions_without_code(
        folder, "float32", "float16", "int8", "uint8", "int64", "bool", "complex64"
    )
