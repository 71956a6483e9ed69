"""``aot doctor``: one GPU, two kinds, the wrong one, an old driver, none; the fake driver shows the GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, make_bundle, pack_file, pointer, variant
from commandline import aot
from loaderscripts import simple

from aot.loader import machine

NO_DRIVER = "found no CUDA driver ("
PTXAS = (
    "it was made by ptxas 13.4, the driver supports CUDA 12.2; "
    "upgrade the driver to one for CUDA 13.0 or newer"
)


def named(name: str, *targets: str, **binary: Any) -> Draft:
    """Two variants of kernel ``name`` for each target, sm_90 unless given."""
    made = [
        variant(pointer("x", align=align), kernel=name, target=target)
        for target in targets or ("sm_90",)
        for align in (16, 1)
    ]
    return Draft(name=name, variants=made, binary=binary)


def examine(driver: Path | None, *bundles: Path, **env: str) -> tuple[int, dict[str, Any]]:
    """Run ``aot doctor --json``; returns the exit code and the report."""
    if driver is not None:
        env["LD_LIBRARY_PATH"] = str(driver)
    env["AOT_BUNDLE_PATH"] = os.pathsep.join(map(str, bundles))
    done = aot("doctor", "--json", **env)
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["serves"] == (not report["problems"]) == (done.returncode == 0)
    return done.returncode, report


def test_one_gpu(driver: Path, tmp_path: Path) -> None:
    """Everything that there is to know of a machine that is served, and no context made to learn it."""
    path = make_bundle(tmp_path / "b", named("k"), named("l", "sm_80", "sm_90"))
    log = tmp_path / "log"
    code, report = examine(
        driver, path, FAKECUDA_DEVICES="9.0:NVIDIA H200", FAKECUDA_LOG=str(log), AOT_FALLBACK="eager"
    )
    assert code == 0
    assert report["driver"] == {
        "version": "13.0",
        "error": None,
        "bindings": machine.version_of("cuda-bindings"),
    }
    assert report["gpus"] == [
        {"index": 0, "name": "NVIDIA H200", "capability": "9.0", "max_shared": 227 * 1024}
    ]
    assert report["environment"]["AOT_FALLBACK"] == "eager"
    assert report["environment"]["AOT_BUNDLE_PATH"] == str(path)
    (bundle,) = report["bundles"]
    assert (bundle["source"], bundle["path"], bundle["reason"]) == ("AOT_BUNDLE_PATH", str(path), None)
    held = bundle["contents"]
    assert (held["format_version"], held["launch_abi"], held["ptxas"]) == (1, 1, "13.4")
    assert held["gpus"] == [
        {
            "gpu": 0,
            "variants": 6,
            "runs": 4,
            "targets": [
                {
                    "target": "sm_80",
                    "variants": 2,
                    "runs": 0,
                    "reasons": ["sm_80 runs on capability 8.x only, the device is 9.0"],
                },
                {"target": "sm_90", "variants": 4, "runs": 4, "reasons": []},
            ],
            "unserved": [],
        }
    ]
    assert {json.loads(line)["call"] for line in log.read_text().splitlines()} == {"cuInit"}


def test_two_kinds_of_gpu(driver: Path, tmp_path: Path) -> None:
    """One of them is served: the other is a problem, by name; a second bundle takes it away."""
    path = make_bundle(tmp_path / "b", named("k"), named("l"))
    devices = {"FAKECUDA_DEVICES": "9.0:NVIDIA H200,8.0:NVIDIA A100"}
    code, report = examine(driver, path, **devices)
    assert code == 1
    reason = "sm_90 runs on capability 9.x only, the device is 8.0"
    assert report["problems"] == [
        f"cuda:1 (NVIDIA A100, capability 8.0) cannot run any kernel: {path}: {reason}; "
        "to build for it: aot build SPEC --target sm_80 -o DIR"
    ]
    assert [gpu["runs"] for gpu in report["bundles"][0]["contents"]["gpus"]] == [4, 0]
    more = make_bundle(tmp_path / "c", named("k", "sm_80"))
    code, report = examine(driver, path, more, **devices)
    assert code == 1
    assert report["problems"] == [
        f"cuda:1 (NVIDIA A100, capability 8.0) cannot run kernel l: {path}: {reason}; "
        "to build for it: aot build SPEC --target sm_80 -o DIR"
    ]
    rest = make_bundle(tmp_path / "d", named("l", "sm_80"))
    assert examine(driver, path, more, rest, **devices)[0] == 0


def test_the_wrong_gpu(driver: Path, tmp_path: Path) -> None:
    """Field cases B09 and B10: said without a launch, for each bundle and its targets."""
    first = make_bundle(tmp_path / "a", named("k", "sm_90a"))
    second = make_bundle(tmp_path / "b", named("k", "sm_80"))
    code, report = examine(driver, first, second, FAKECUDA_DEVICES="10.0:NVIDIA B200")
    assert code == 1
    assert report["problems"] == [
        "cuda:0 (NVIDIA B200, capability 10.0) cannot run any kernel: "
        f"{first}: sm_90a runs on capability 9.0 only, the device is 10.0; "
        f"{second}: sm_80 runs on capability 8.x only, the device is 10.0; "
        "to build for it: aot build SPEC --target sm_100 -o DIR"
    ]
    code, report = examine(driver, first, FAKECUDA_DEVICES="11.7")
    assert report["problems"][0].endswith("aot build SPEC --target <a target for 11.7> -o DIR")


def test_an_old_driver(driver: Path, tmp_path: Path) -> None:
    """Field case B11: the driver's CUDA version, the ptxas, and what to do."""
    path = make_bundle(tmp_path / "b", named("k"))
    code, report = examine(driver, path, FAKECUDA_DRIVER_VERSION="12020")
    assert code == 1
    assert report["driver"]["version"] == "12.2"
    assert report["problems"] == [
        f"cuda:0 (Fake GPU, capability 9.0) cannot run any kernel: {path}: {PTXAS}; "
        "to build for it: aot build SPEC --target sm_90 -o DIR"
    ]
    assert examine(driver, path, FAKECUDA_DRIVER_VERSION="13000")[0] == 0


def test_shared_memory(driver: Path, tmp_path: Path) -> None:
    """Field case B08: a kernel that its target has room for, and this GPU of the same family has not."""
    path = make_bundle(tmp_path / "b", named("k", "sm_80", shared=150_000), named("l", "sm_80"))
    code, report = examine(driver, path, FAKECUDA_DEVICES="8.0,8.6")
    why = "some need up to 150000 bytes of shared memory, the device allows 101376"
    assert code == 1
    assert report["problems"] == [
        f"cuda:1 (Fake GPU, capability 8.6) cannot run kernel k: {path}: {why}; "
        "to build for it: aot build SPEC --target sm_86 -o DIR"
    ]
    first, second = report["bundles"][0]["contents"]["gpus"]
    assert (first["runs"], second["runs"], second["unserved"]) == (4, 2, ["k"])


def test_damaged_and_left_out(driver: Path, tmp_path: Path) -> None:
    """Field case C04: a table that cannot be read is found now; a bundle that cannot be opened says why."""
    path = make_bundle(tmp_path / "b", named("k"))
    pack = pack_file(path)
    data = bytearray(pack.read_bytes())
    data[-3] ^= 0xFF
    pack.write_bytes(data)
    none = tmp_path / "none"
    code, report = examine(driver, none, path)
    assert code == 1
    assert report["bundles"][0] == {
        "source": "AOT_BUNDLE_PATH",
        "path": str(none),
        "reason": f"{none}: found nothing, wanted a bundle (a directory with manifest.json)",
        "contents": None,
    }
    (damaged,) = report["bundles"][1]["contents"]["damaged"]
    assert damaged.startswith(str(pack))
    assert report["problems"][0] == damaged
    code, report = examine(driver, none)
    assert code == 1
    assert report["problems"] == [
        "found no bundle that can be used, wanted one; looked at:\n"
        f"  AOT_BUNDLE_PATH: {none}: found nothing, wanted a bundle (a directory with manifest.json)"
    ]


@pytest.mark.skipif(bool(machine.driver_and_gpus()[1]), reason="this machine has a GPU")
def test_no_driver_and_no_gpu(driver: Path, tmp_path: Path) -> None:
    """Field case B14: neither is an exception; what the bundle holds is still said."""
    path = make_bundle(tmp_path / "b", named("k"))
    code, report = examine(None, path)
    assert code == 1
    assert report["driver"]["version"] is None
    assert [problem.partition("(")[0] + "(" for problem in report["problems"]] == [NO_DRIVER]
    assert report["bundles"][0]["contents"]["variants"] == 2
    code, report = examine(driver, path, FAKECUDA_FAIL="cuInit:100")
    assert code == 1
    assert report["problems"] == [
        "cuInit failed with CUDA_ERROR_NO_DEVICE (100); no GPU is visible: look at nvidia-smi "
        "and CUDA_VISIBLE_DEVICES"
    ]


def test_text(driver: Path, tmp_path: Path) -> None:
    path = make_bundle(tmp_path / "b", named("k"), named("l", "sm_80"))
    none = tmp_path / "none"
    env = {"LD_LIBRARY_PATH": str(driver), "AOT_BUNDLE_PATH": f"{none}{os.pathsep}{path}"}
    done = aot("doctor", **env)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert f"driver: CUDA 13.0, cuda-bindings {machine.version_of('cuda-bindings')}" in lines
    assert "gpu: cuda:0 (Fake GPU, capability 9.0), 232448 bytes of shared memory a block" in lines
    at = lines.index(f"bundle 1: {path}, through AOT_BUNDLE_PATH")
    assert lines[at + 1 : at + 3] == [
        "  format 1, ABI 1, by aot-kernels 0.1.0, Triton 3.9.0, ptxas 13.4",
        "  kernels k, l: 4 variants for sm_80, sm_90",
    ]
    assert lines[at + 4 : at + 7] == [
        "  cuda:0: 2 of 4 variants can run",
        "    2 of sm_80 cannot: sm_80 runs on capability 8.x only, the device is 9.0",
        f"left out: AOT_BUNDLE_PATH: {none}: found nothing, wanted a bundle (a directory with manifest.json)",
    ]
    assert lines[-1].startswith("problem: cuda:0 (Fake GPU, capability 9.0) cannot run kernel l: ")
    good = aot(
        "doctor", LD_LIBRARY_PATH=str(driver), AOT_BUNDLE_PATH=str(make_bundle(tmp_path / "c", simple()))
    )
    assert good.returncode == 0
    assert good.stdout.splitlines()[-1] == "every kernel of these bundles can run on every GPU"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_base_install_has_it(driver: Path, tmp_path: Path, flags: list[str]) -> None:
    """Field case C28: a service has neither click nor torch nor Triton; the report is the same."""
    code = """
        import sys
        from importlib.machinery import PathFinder
        find = PathFinder.find_spec
        hidden = ("click", "rich", "torch", "triton", "yaml", "elftools")
        PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in hidden else find(name, *rest)
        from aot.cli import main
        main(["doctor", *sys.argv[1:]])
    """
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    env["AOT_BUNDLE_PATH"] = str(make_bundle(tmp_path / "b", named("k")))
    script = "\n".join(line[8:] for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", script, *flags], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if flags:
        assert json.loads(done.stdout)["torch"] is None
    else:
        assert "torch: none" in done.stdout.splitlines()


def test_notes(driver: Path, tmp_path: Path) -> None:
    """What stops nothing and should be known: a word that is no mode, a folder that everyone may write."""
    path = make_bundle(tmp_path / "b", named("k"))
    path.chmod(0o777)
    code, report = examine(driver, path, AOT_FALLBACK="on")
    assert code == 0
    assert "AOT_FALLBACK: found 'on', wanted strict or eager" in report["notes"]
    assert any(note.startswith(f"{path} can be written by every user") for note in report["notes"])


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:50 / /mnt/models ro,relatime shared:2 - nfs4 server:/models ro,vers=4.2
31 22 0:51 / /mnt/models\040two rw - fuse.gcsfuse bucket rw
32 22 0:52 / /mnt rw - tmpfs tmpfs rw
33 22 0:53 / /over rw - tmpfs tmpfs rw
34 22 0:54 / /over ro - squashfs /dev/loop1 ro
35 22 0:55 / /box rw - fuse.fuse-overlayfs fuse-overlayfs rw
"""


@pytest.mark.parametrize(
    ("path", "mount", "type_", "network"),
    [
        ("/srv/b", "/", "ext4", False),
        ("/mnt/models/b", "/mnt/models", "nfs4", True),
        ("/mnt/models two/b", "/mnt/models two", "fuse.gcsfuse", True),
        ("/mnt/models2/b", "/mnt", "tmpfs", False),
        ("/over", "/over", "squashfs", False),
        ("/box/b", "/box", "fuse.fuse-overlayfs", False),
    ],
)
def test_file_systems(
    path: str, mount: str, type_: str, network: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deepest mount that holds the folder, the last of several on one place, names with spaces."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    # These folders are nowhere: what the kernel says of a folder is taken from one that is there.
    there = os.stat(tmp_path), os.statvfs(tmp_path)
    monkeypatch.setattr(os, "stat", lambda p: there[0])
    monkeypatch.setattr(os, "statvfs", lambda p: there[1])
    found = machine.file_system(path, str(mounts))
    assert (found.mount, found.type, found.network) == (mount, type_, network)
    assert (found.read_only, found.shared) == (False, False)


def test_this_file_system(tmp_path: Path) -> None:
    found = machine.file_system(tmp_path)
    assert found.mount is not None
    assert os.path.realpath(tmp_path).startswith(found.mount)
    assert machine.file_system(tmp_path, str(tmp_path / "none")).type is None
    assert machine.file_system("/proc/self").type == "proc"
