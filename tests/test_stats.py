"""Counters: exact under threads, polled sources, and text that Prometheus' own parser reads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundlemaker import make_bundle
from fakecuda import run_script
from loaderscripts import Runner, simple
from prometheus_client.parser import text_string_to_metric_families

import aot
from aot.loader import stats

OP = {"hits": 0, "misses": 0, "fallbacks": 0}
KERNEL = {"hits": 0, "misses": 0, "launches": 0, "loads": 0, "load_ms": 0}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters and sources of this test alone."""
    monkeypatch.setattr(stats, "_counters", {"ops": {}, "kernels": {}})
    monkeypatch.setattr(stats, "_sources", {"ops": [], "kernels": []})


@pytest.fixture
def _switching() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switching")
def test_exact_under_threads() -> None:
    start = threading.Barrier(17)
    names = [f"k{i % 3}" for i in range(16)]

    def work(name: str) -> None:
        start.wait()
        for _ in range(10_000):
            counters = stats.kernel(name)
            counters.hit()
            counters.launch()
        for _ in range(100):
            stats.kernel(name).load(0.001)
            stats.op("sum").miss()

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    start.wait()
    seen = [aot.stats() for _ in range(20)]
    for thread in threads:
        thread.join()
    found = aot.stats()
    for name in ("k0", "k1", "k2"):
        count = names.count(name)
        row = found["kernels"][name]
        assert row == KERNEL | {
            "hits": 10_000 * count,
            "launches": 10_000 * count,
            "loads": 100 * count,
            "load_ms": pytest.approx(100 * count),
        }
        hits = [now["kernels"][name]["hits"] for now in seen if name in now["kernels"]]
        assert hits == sorted(hits)
    assert found["ops"] == {"sum": OP | {"misses": 1600}}


def test_sources() -> None:
    """What native code counts is added by name and field; a source counts once; the dicts are copies."""
    stats.kernel("k").hit()

    def source() -> dict[str, dict[str, float]]:
        return {"k": {"hits": 5, "replays": 2}, "other": {"launches": 1}}

    stats.register(source)
    stats.register(source)
    stats.register(lambda: {"sum": {"hits": 7}}, "ops")
    found = aot.stats()
    assert found == {
        "ops": {"sum": OP | {"hits": 7}},
        "kernels": {"k": KERNEL | {"hits": 6, "replays": 2}, "other": KERNEL | {"launches": 1}},
    }
    found["kernels"]["k"]["hits"] = 0
    assert aot.stats()["kernels"]["k"]["hits"] == 6


def test_prometheus() -> None:
    """The text is what the format asks for, byte by byte."""
    stats.op("sum").fallback()
    stats.kernel("k").load(0.25)
    lines = aot.prometheus().splitlines()
    assert lines[:3] == [
        "# HELP aot_op_hits_total Calls that a prebuilt kernel served.",
        "# TYPE aot_op_hits_total counter",
        'aot_op_hits_total{op="sum"} 0',
    ]
    assert 'aot_op_fallbacks_total{op="sum"} 1' in lines
    assert 'aot_kernel_load_seconds_total{kernel="k"} 0.25' in lines
    assert len(lines) == (3 + 5) * 3
    assert aot.prometheus().endswith("\n")


def test_prometheus_is_read_back() -> None:
    """Every family is a counter with a help text, every name comes back, and no sample is there twice."""
    names = ["k", 'quo"te', "back\\slash", "line\nfeed", "\\n", "größe", '{a="b"}', "a b#"]
    for times, name in enumerate(names, 1):
        for _ in range(times):
            stats.kernel(name).launch()
        stats.kernel(name).load(times / 8)
    stats.op("sum").hit()
    stats.register(lambda: {"k": {"graph-replays": 3}})
    families = list(text_string_to_metric_families(aot.prometheus()))
    assert all(family.type == "counter" and family.documentation for family in families)
    samples = [(s.name, tuple(s.labels.items())) for family in families for s in family.samples]
    assert len(samples) == len(set(samples)) == 5 * len(names) + 1 + 3
    values = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    for times, name in enumerate(names, 1):
        assert values["aot_kernel_launches_total", name] == times
        assert values["aot_kernel_load_seconds_total", name] == times / 8
    assert values["aot_op_hits_total", "sum"] == 1
    assert values["aot_kernel_graph_replays_total", "k"] == 3


def test_what_a_launch_counts(run: Runner) -> None:
    """Hits, misses, launches and loads by kernel, over bundles; an empty grid is a hit and no launch."""
    result = run(
        """
        bundle, again = aot.open(PATH), aot.open(PATH)
        for i in range(3):
            bundle.kernel("k")[(1,)](Array(), 16)
        again.kernel("k")[(1,)](Array(), 16)
        again.kernel("k")[lambda meta: (0,)](Array(), 16)
        error(bundle.kernel("k")[(1,)], Array(dtype="float16"), 16)
        answer([aot.stats(), bundle.stats(), again.stats()])
        """,
        simple(),
    )
    found, first, second = result.value
    milliseconds = found["kernels"]["k"].pop("load_ms")
    assert 0 < milliseconds < 60_000
    assert found["ops"] == {}
    assert found["kernels"] == {"k": {"hits": 5, "misses": 1, "launches": 4, "loads": 1}}
    assert [first["launches"], second["launches"]] == [3, 1]
    assert len(result.named("cuLibraryLoadData")) == 1


def test_wrong_gpu_for_several_bundles(driver: Path, tmp_path: Path) -> None:
    """Field case B09: each bundle says device, capability, its targets and the command."""
    paths = [
        make_bundle(tmp_path / name, simple(target=target))
        for name, target in (("a", "sm_80"), ("b", "sm_120"))
    ]
    script = """
        os.environ["AOT_BUNDLE_PATH"] = PATH
        from aot.loader import discovery
        answer(error(discovery.serve, "k", lambda kernel: kernel[(1,)](Array(), 16)))
    """
    joined = Path(":".join(map(str, paths)))
    result = run_script(driver, script, joined, devices="9.0:NVIDIA H200")
    assert result.value[0] == "KernelMiss"
    assert result.value[1].splitlines() == [
        "kernel 'k': none of 2 bundles serves the call:",
        *(
            "kernel 'k' is not built for this GPU: found cuda:0 (NVIDIA H200, capability 9.0), "
            f"{path} has it for {target}; build it with: aot build SPEC --target sm_90 -o DIR"
            for path, target in zip(paths, ("sm_80", "sm_120"), strict=True)
        ),
    ]
