"""The GPU ring: prebuilt kernels on a real card, in a process where Triton cannot be imported."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from pathlib import Path

import pytest

# Anything that would compile fails: a missing variant is a failure of the test, not a detour.
sys.modules["triton"] = None  # type: ignore[assignment]

torch = pytest.importorskip("torch", reason="the GPU suite needs torch")

import aot  # noqa: E402

PASSED: Counter[tuple[str, str, str]] = Counter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here, and skip only where there is no GPU."""
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU"))


@pytest.fixture(scope="session")
def bundle() -> aot.Bundle:
    """The bundle under test, from AOT_BUNDLE_PATH or dist/reductions."""
    path = os.environ.get("AOT_BUNDLE_PATH", "dist/reductions")
    opened = aot.open(path)
    aot.use(opened)
    return opened


@pytest.fixture(autouse=True)
def prebuilt(request: pytest.FixtureRequest, bundle: aot.Bundle):
    """Fail a test in which no prebuilt kernel ran, unless it is marked as launching none."""
    before = bundle.stats()["launches"]
    yield
    torch.cuda.synchronize()
    if request.node.get_closest_marker("no_launch") is None:
        assert bundle.stats()["launches"] > before, "no prebuilt kernel was launched"
    assert "triton" not in {name for name, module in sys.modules.items() if module is not None}


@pytest.fixture
def passed():
    """Count one passed check under (op, dtype, layout) for the summary."""

    def count(op: str, dtype: object, layout: str) -> None:
        PASSED[op, str(dtype).removeprefix("torch."), layout] += 1

    return count


def _bundle_triton() -> str:
    with aot.open(os.environ.get("AOT_BUNDLE_PATH", "dist/reductions")) as opened:
        return opened.reader.manifest.provenance.triton


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the summary (op × dtype × layout: checks passed) where AOT_GPU_SUMMARY says."""
    path = os.environ.get("AOT_GPU_SUMMARY")
    if not path or not PASSED:
        return
    from importlib.metadata import version

    table: dict[str, dict[str, dict[str, int]]] = {}
    for (op, dtype, layout), count in sorted(PASSED.items()):
        table.setdefault(op, {}).setdefault(dtype, {})[layout] = count
    summary = {
        "device": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_bindings": version("cuda-bindings"),
        "aot": aot.__version__,
        "triton": _bundle_triton(),
        "tests_collected": session.testscollected,
        "tests_failed": session.testsfailed,
        "exit_status": int(exitstatus),
        "checks_passed": sum(PASSED.values()),
        "passed": table,
    }
    Path(path).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
