"""The C API when the driver refuses, with threads, forks and little memory; the example program."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundlemaker import Draft, make_bundle, pack_file, pointer, variant
from capi import C11, CXX17, EXAMPLE, RACES, SANITIZERS, Probe, compiled
from capi.session import BASE, Start, X, sessions
from fakecuda import run_script
from loaderscripts import ints, simple
from test_reader import flip

DIST = Path(__file__).parent.parent / "dist" / "reductions"


@pytest.fixture
def start(driver: Path, tmp_path: Path) -> Iterator[Start]:
    yield from sessions(driver, tmp_path)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (
            "cuInit:100",
            "cuInit failed with CUDA_ERROR_NO_DEVICE (100); no GPU is visible: look at nvidia-smi",
        ),
        (
            "cuLibraryLoadData:200",
            "cuLibraryLoadData failed with CUDA_ERROR_INVALID_IMAGE (200) for kernel 'k'",
        ),
        ("cuLibraryLoadData:2", "cuLibraryLoadData failed with CUDA_ERROR_OUT_OF_MEMORY (2) for kernel 'k'"),
        (
            "cuLibraryGetKernel:500",
            "cuLibraryGetKernel failed with CUDA_ERROR_NOT_FOUND (500) for kernel 'k'",
        ),
        ("cuLaunchKernelEx:701", "cuLaunchKernelEx failed with CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701) for"),
        (
            "cuLaunchKernelEx:12345",
            "cuLaunchKernelEx failed with a CUDA error (12345) for kernel 'k' of target",
        ),
        ("cuMemAllocAsync:2", "cuMemAllocAsync failed with CUDA_ERROR_OUT_OF_MEMORY (2) for kernel 'k'"),
        ("cuMemFreeAsync:1", "cuMemFreeAsync failed with CUDA_ERROR_INVALID_VALUE (1) for kernel 'k'"),
        ("cuCtxPushCurrent:201", "cuCtxPushCurrent failed with CUDA_ERROR_INVALID_CONTEXT (201) for cuda:0"),
        (
            "cuKernelSetAttribute:1",
            "cuKernelSetAttribute failed with CUDA_ERROR_INVALID_VALUE (1) for kernel",
        ),
        (
            "cuDeviceGetAttribute:1",
            "cuDeviceGetAttribute failed with CUDA_ERROR_INVALID_VALUE (1) for cuda:0",
        ),
    ],
)
def test_the_driver_refuses(start: Start, call: str, fault: str) -> None:
    """Each refusal is one error that names the call; the process goes on, and the next call is right."""
    binary = {"shared": 50_000, "scratch": (16, 16)}
    session = start(simple(num_ctas=2, binary=binary), fail=f"{call}@1")
    answer = session("launch", "k", 0, 0, "1,1,1", X, "=i:5")
    assert answer[:3] == ["error", "driver", call.split(":")[1]]
    assert answer[3].startswith(fault)
    assert session("launch", "k", 0, 0, "1,1,1", X, "=i:5") == ["ok"]
    # A refused call is recorded too.
    names = [c["call"] for c in session.calls if "failed" not in c]
    assert names.count("cuCtxPushCurrent") == names.count("cuCtxPopCurrent")
    assert names.count("cuLibraryLoadData") == 1
    # What a failed launch was lent it gives back.
    assert names.count("cuMemAllocAsync") == names.count("cuMemFreeAsync") + call.startswith("cuMemFree")


def test_an_image_for_another_driver(start: Start) -> None:
    session = start(simple(), fail="cuLibraryLoadData:209", driver_version="12020")
    assert session.fault("launch", "k", 0, 0, "1,1,1", X, "=i:5").endswith(
        "; the cubin is for sm_90 and was made by ptxas 13.4, the driver supports CUDA 12.2; "
        "build for this device's capability, or upgrade the driver"
    )


def test_no_driver(tmp_path: Path) -> None:
    """What is no library stands for one that is not there, also on a machine that has a driver."""
    path = make_bundle(tmp_path / "b", simple())
    (tmp_path / "libcuda.so.1").write_text("no library")
    with Probe(LD_LIBRARY_PATH=str(tmp_path)) as probe:
        probe("open", path)
        fault = probe.fault("launch", "k", 0, 0, "1,1,1", X, "=i:5")
    assert fault.startswith("found no CUDA driver (")
    assert "libcuda.so.1: " in fault
    assert fault.endswith("which comes with the NVIDIA driver. In a container, start it with GPU access")


def test_a_device_that_is_not_there(start: Start) -> None:
    session = start(simple())
    for device in (1, -1, 64, 2**31 - 1):
        assert session.fault("launch", "k", device, 0, "1,1,1", X, "=i:5") == (
            f"found device cuda:{device}, wanted one of the 1 that the driver shows; "
            "look at CUDA_VISIBLE_DEVICES"
        )
    assert session("launch", "k", 0, 0, "1,1,1", X, "=i:5") == ["ok"]


def test_first_load_during_capture(start: Start) -> None:
    """Field case C11: refused before the driver is asked; a prepared call launches."""
    session = start(simple(), capturing="7")
    assert session.fault("launch", "k", 0, 7, "1,1,1", X, "=i:5") == (
        "kernel 'k' of target sm_90 on cuda:0 (Fake GPU, capability 9.0) is not loaded yet, and the stream "
        "is being captured; prepare the call before the capture begins"
    )
    assert not session.named("cuLibraryLoadData")
    assert session("prepare", "k", 0, "1,1,1", X, "=i:5")[0] == "ok"
    assert session("call", 7) == ["ok"]
    assert session("launch", "k", 0, 7, "1,1,1", X, "=i:5") == ["ok"]


@pytest.mark.parametrize("sanitizers", [SANITIZERS, RACES], ids=["addresses", "races"])
def test_sixteen_threads_load_once(start: Start, sanitizers: tuple[str, ...]) -> None:
    """Field case C08: threads that never touched CUDA, at the first launch at once."""
    session = start(simple(), sanitizers=sanitizers)
    assert session("threads", "k", "1,1,1", X, "=i:5") == ["ok", "16"]
    assert len(session.named("cuLibraryLoadData")) == 1
    assert len(session.launches) == 16 * 21


def test_fork(start: Start) -> None:
    """Field case C09: before the first launch it works, after it the child gets an error."""
    given = ("k", 0, 0, "1,1,1", X, "=i:5")
    session = start(simple())
    assert session("fork", *given) == ["ok"]
    assert session.probe.line() == ["ok", "0"]
    assert session("launch", *given) == ["ok"]
    fault = session.fault("fork", *given)
    assert fault.startswith("this process (")
    assert fault.endswith("and CUDA does not work in such a child; fork before the first launch")
    assert session.probe.line() == ["ok", "0"]
    assert session("launch", *given) == ["ok"]


def test_a_damaged_cubin_is_found_at_its_launch(start: Start) -> None:
    """Field case C16: the bytes that the driver would get are hashed; others still launch."""
    session = start(
        Draft(variants=[variant(pointer("x"))]),
    )
    flip(pack_file(session.path), 100)
    answer = session("launch", "k", 0, 0, "1,1,1", X)
    assert answer[1] == "bundle"
    assert "does not decompress" in answer[-1] or "found sha256" in answer[-1]
    assert not session.named("cuLibraryLoadData")
    flip(pack_file(session.path), 100)
    assert session("launch", "k", 0, 0, "1,1,1", X) == ["ok"]


def test_wrong_uses_of_the_functions(start: Start) -> None:
    session = start(simple())
    answer = session("misuse")
    empty = "found an empty path, wanted a bundle (a directory with manifest.json)"
    assert [field.replace(str(session.path), "B") for field in answer] == [
        "ok",
        empty,
        empty,
        "aot_bundle_open: found no place for the bundle, wanted one",
        "aot_bundle_kernel: found a null pointer, wanted bundle, name and kernel",
        "B: found no kernel 'nothing', wanted one of k",
        "aot_kernel_launch: found a null pointer, wanted a kernel",
        "aot_kernel_prepare: found a null pointer, wanted kernel and call",
        "aot_call_launch: found a null pointer, wanted a call",
    ]


def test_memory_that_runs_out_in_a_launch(start: Start) -> None:
    """At every allocation: an error, no leak, and the next call is right."""
    session = start(simple())
    for limit in range(1000):
        session("allocations", limit)
        answer = session("launch", "k", 0, 0, "1,1,1", X, "=i:5")
        if answer == ["ok"]:
            break
        assert answer[1] == "memory"
    assert limit > 5
    session("allocations", -1)
    assert session("launch", "k", 0, 0, "1,1,1", X, "=i:5") == ["ok"]
    for limit in range(20):
        session("allocations", limit)
        if session("launch", "k", 0, 0, "1,1,1", X, "=f:0.5")[1] != "memory":
            break
    session("allocations", -1)
    assert session("launch", "k", 0, 0, "1,1,1", X, "=f:0.5")[1] == "miss"


def test_in_the_process_of_another_language(driver: Path, tmp_path: Path) -> None:
    """As a shared library, called by ctypes: the structures are as the header lays them out."""
    script = f"""
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from capi.binding import Api, Refused
        opened = Api(Path({str(tmp_path)!r})).open(PATH)
        x = Array()
        opened.launch("k", x, -16, grid=(3,), stream=7)
        held = opened.prepare("k", x, 17, grid=(2, 2), num_warps=4)
        opened.close()
        held(Array(offset=32), stream=9)
        symbol = held.symbol()
        held.free()
        try:
            held.api.open("/nowhere")
        except Refused as refused:
            answer([symbol, str(refused)])
    """
    done = run_script(driver, script, make_bundle(tmp_path / "b", simple()))
    assert done.value == [
        "k_kernel",
        "/nowhere: found nothing, wanted a bundle (a directory with manifest.json)",
    ]
    assert [(launch["grid"], launch["stream"]) for launch in done.launches] == [
        ([3, 1, 1], 7),
        ([2, 2, 1], 9),
    ]
    assert [ints(launch, *"QiQQ")[:2] for launch in done.launches] == [[BASE + 4096, -16], [BASE + 32, 17]]


@pytest.mark.parametrize("compiler", [C11, CXX17], ids=["C11", "C++17"])
def test_the_example(driver: Path, tmp_path: Path, compiler: tuple[str, ...]) -> None:
    """It compiles without a warning, and launches the kernel twice over the rows that it was asked for."""
    if not DIST.exists():
        pytest.skip("no dist/reductions here; make bundle builds it")
    program = compiled(EXAMPLE, tmp_path / "sum_rows", "-O1", compiler=compiler)
    log = tmp_path / "log"
    env = dict(os.environ) | {"LD_LIBRARY_PATH": str(driver), "FAKECUDA_LOG": str(log)}
    done = subprocess.run(
        [program, DIST, "1000", "4096", "--no-check"], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0"] * 1000
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    first, second = (c for c in calls if c["call"] == "cuLaunchKernel")
    assert first == second
    x, out, partial, counter, *scalars = ints(first, *"QQQQqqqiqdQQ")
    assert [c["address"] for c in calls if c["call"] == "cuMemAlloc"] == [x, out, partial, counter]
    assert scalars == [1000, 4096, 4096, 1, 4096, 1.0, 0, 0]
    assert first["grid"][0] in (1000, 250)
    # A driver that runs no kernel gives wrong sums, and the example says so.
    wrong = subprocess.run([program, DIST, "3", "5"], capture_output=True, text=True, env=env, timeout=60)
    assert wrong.returncode == 1
    assert "sum_rows: row 0 is 0, wanted " in wrong.stderr
    for arguments in ([], [DIST, "0", "5"], [DIST, "5", "-5"]):
        assert subprocess.run([program, *arguments], capture_output=True, env=env, timeout=60).returncode == 2
