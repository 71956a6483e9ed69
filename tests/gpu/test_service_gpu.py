"""Counters, fallback, several bundles and ``aot doctor`` on the card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import aot
from aot.errors import NoBundleError
from aot.loader import discovery, native

BUNDLE = os.environ.get("AOT_BUNDLE_PATH", "dist/reductions")


@pytest.fixture
def nothing(bundle: aot.Bundle, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No bundle in this test, and the one under test afterwards."""
    monkeypatch.delenv("AOT_BUNDLE_PATH", raising=False)
    discovery._restart(None)
    yield
    aot.use(bundle)


def test_what_is_counted(passed: Any) -> None:
    """A hit for each call of an op and a launch for each kernel, on the prepared way too."""
    x = torch.randn(64, 1000, device="cuda")
    before = aot.stats()
    for _ in range(100):
        aot.ops.sum(x, -1)
    after = aot.stats()
    hits = after["ops"]["sum"]["hits"] - before["ops"].get("sum", {}).get("hits", 0)
    launches = sum(row["launches"] for row in after["kernels"].values())
    launched = launches - sum(row["launches"] for row in before["kernels"].values())
    assert (hits, launched) == (100, 100)
    assert after["ops"]["sum"]["misses"] == before["ops"].get("sum", {}).get("misses", 0)
    assert sum(row["loads"] for row in after["kernels"].values()) >= 1
    text = aot.prometheus()
    assert f'aot_op_hits_total{{op="sum"}} {after["ops"]["sum"]["hits"]}' in text.splitlines()
    passed("sum", "float32", "counted")


@pytest.mark.no_launch
@pytest.mark.usefixtures("nothing")
def test_eager_serves_what_no_bundle_does() -> None:
    """torch's results, with a gradient, into ``out`` and in a graph; strict is an error before and after."""
    x = torch.randn(64, 1000, device="cuda")
    with pytest.raises(NoBundleError):
        aot.ops.sum(x, -1)
    before = aot.stats()["ops"]["sum"]["fallbacks"]
    with aot.fallback("eager"):
        assert torch.equal(aot.ops.sum(x, -1), x.sum(-1))
        values, indices = aot.ops.max(x, 1)
        assert torch.equal(values, x.amax(1))
        assert torch.equal(indices, x.argmax(1))
        out = torch.empty(64, device="cuda")
        assert aot.ops.sum(x, -1, out=out) is out
        assert torch.equal(out, x.sum(-1))
        y = x.clone().requires_grad_()
        aot.ops.sum(y * y).backward()
        assert torch.equal(y.grad, 2 * x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = aot.ops.sum(x, -1)
        x.normal_()
        graph.replay()
        assert torch.equal(captured, x.sum(-1))
    assert aot.stats()["ops"]["sum"]["fallbacks"] - before >= 4
    with pytest.raises(NoBundleError):
        aot.ops.sum(x, -1)


def test_a_bundle_serves_again_after_use(bundle: aot.Bundle, passed: Any) -> None:
    """What was prepared before ``aot.use`` is not used after it, and no call is lost on the way."""
    x = torch.randn(64, 1000, device="cuda")
    wanted = aot.ops.sum(x, -1)
    with aot.open(BUNDLE) as other:
        aot.use(other)
        try:
            before = other.stats()["launches"]
            assert torch.equal(aot.ops.sum(x, -1), wanted)
            assert other.stats()["launches"] == before + 1
        finally:
            aot.use(bundle)
    before = bundle.stats()["launches"]
    assert torch.equal(aot.ops.sum(x, -1), wanted)
    assert bundle.stats()["launches"] == before + 1
    passed("sum", "float32", "after aot.use")


@pytest.mark.no_launch
def test_bundles_on_the_path(tmp_path: Path) -> None:
    """Field case C14: a place with nothing, a damaged bundle, and one that serves."""
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "manifest.json").write_text("[]")
    code = """
import json, torch, aot
from aot.loader import discovery
x = torch.arange(12.0, device="cuda").reshape(3, 4)
result = aot.ops.sum(x, -1).tolist()
launches = discovery.default_bundle().stats()["launches"]
print(json.dumps([result, launches, [d.reason is None for d in discovery.decisions()]]))
"""
    path = os.pathsep.join([str(tmp_path / "none"), str(damaged), os.path.abspath(BUNDLE)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "AOT_BUNDLE_PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[6.0, 22.0, 38.0], 1, [False, False, True]]
    assert done.stderr.count("bundle left out") == 2


@pytest.mark.no_launch
def test_doctor() -> None:
    """The card, its driver and torch as they are, and a bundle that can run here."""
    code = "import sys; from aot.cli import main; main(['doctor', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "AOT_BUNDLE_PATH": os.path.abspath(BUNDLE)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, [])
    assert [gpu["capability"] for gpu in report["gpus"]] == [
        "{}.{}".format(*torch.cuda.get_device_capability(i)) for i in range(torch.cuda.device_count())
    ]
    assert [gpu["name"] for gpu in report["gpus"]] == [
        torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
    ]
    assert report["torch"] == {"version": str(torch.__version__), "cuda": torch.version.cuda}
    assert report["launcher"]["native"] == native.available()
    for gpu in report["bundles"][0]["contents"]["gpus"]:
        assert gpu["runs"] > 0
        assert gpu["unserved"] == []
