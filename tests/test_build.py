"""Builds from a spec folder to a bundle, through the command line as a user runs it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from commandline import AOT, aot
from kernelfolder import SCALE_PY, SCALE_YAML, scale_folder, write

from aot.build.verify import verify
from aot.build.writer import _publish
from aot.reader import BundleReader

BROKEN_PY = """
import triton
import triton.language as tl


@triton.jit
def broken(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.arange(0, 100))
"""

BROKEN_YAML = """
spec_version: 1
kernel: broken
source: broken.py:broken
params:
  x_ptr: {pointer: float32}
  n: {int: int32}
  BLOCK: {constexpr: 256}
targets: [sm_90a]
"""


def fingerprint(bundle: Path) -> dict[str, str]:
    """Name and sha256 of every file of a bundle."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(bundle.iterdir())}


def test_build_ls_verify(tmp_path: Path) -> None:
    """The whole path: four variants, and every hash, count and ABI is right."""
    done = aot("build", scale_folder(tmp_path / "k"), "-o", tmp_path / "b", "-j", 2)
    assert done.returncode == 0, done.stderr
    assert "4 variants for sm_90a" in done.stdout
    rows = json.loads(aot("ls", tmp_path / "b", "--json").stdout)
    assert [(r["axes"]["dtype"], r["claims"]) for r in rows] == [
        ("float32", {"x_ptr": "16"}), ("float32", {}), ("float64", {"x_ptr": "16"}), ("float64", {}),
    ]  # fmt: skip
    assert aot("verify", tmp_path / "b").stdout.startswith(f"{tmp_path / 'b'}: sound, 4 variants, ")


def test_same_bytes_from_any_folder_date_and_locale(tmp_path: Path) -> None:
    """Field cases C19 and C25: folder, touch, TZ, locale, hash seed and -j change nothing."""
    first = scale_folder(tmp_path / "a")
    second = scale_folder(tmp_path / "ü x" / "deeper" / "a")
    os.utime(second / "scale.py", (1, 1))
    one = aot("build", first, "-o", tmp_path / "one", "-j", 1, PYTHONHASHSEED="0")
    two = aot(
        "build", second, "-o", tmp_path / "ü x" / "two", "-j", 2,
        PYTHONHASHSEED="1", TZ="Asia/Tokyo", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0",
    )  # fmt: skip
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "ü x" / "two")
    with BundleReader(tmp_path / "one") as reader:
        for kernel in reader.manifest.kernels:
            for ref in kernel.tables:
                for entry in reader.table(ref):
                    cubin = reader.cubin(ref.target, entry.binary.cubin)
                    assert str(tmp_path).encode() not in cubin
                    assert os.uname().nodename.encode() not in cubin


def test_a_checkouts_own_folder_is_in_no_bundle(tmp_path: Path) -> None:
    """Field case C19: specs at the top of a checkout, and two of one name, in folders of other names."""
    for name in ("one", "two"):
        folder = scale_folder(tmp_path / name)
        write(
            folder / "sub", scale_yaml=SCALE_YAML.replace("kernel: scale", "kernel: twin"), scale_py=SCALE_PY
        )
        write(folder / "sub", other_yaml=SCALE_YAML.replace("kernel: scale", "kernel: other"))
        assert aot("build", folder, "-o", tmp_path / "b" / name).returncode == 0
    assert fingerprint(tmp_path / "b" / "one") == fingerprint(tmp_path / "b" / "two")
    with BundleReader(tmp_path / "b" / "one") as reader:
        assert list(reader.manifest.provenance.specs) == ["other.yaml", "scale.yaml", "sub/scale.yaml"]


def test_non_ascii_sources(tmp_path: Path) -> None:
    """Field case C25: comments and reasons outside ASCII, under an ASCII locale."""
    folder = write(
        tmp_path / "k",
        scale_py=SCALE_PY.replace('"""Multiply', '"""é — Multiply'),
        scale_yaml=SCALE_YAML + 'exclude: [{dtype: float64, why: "zu groß — é"}]\n',
    )
    done = aot("build", folder, "-o", tmp_path / "b", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr


def test_a_failed_job_is_reported_and_publishes_nothing(tmp_path: Path) -> None:
    """Field case B12: one bad kernel; the others are compiled, and only --keep-going publishes them."""
    folder = scale_folder(tmp_path / "k")
    write(folder, broken_py=BROKEN_PY, broken_yaml=BROKEN_YAML)
    done = aot("build", folder, "-o", tmp_path / "b")
    assert done.returncode == 1
    assert not (tmp_path / "b").exists()
    assert "failed: broken  on sm_90a: " in done.stderr
    assert "power of 2" in done.stderr
    assert str(folder) not in done.stderr
    assert done.stderr.rstrip().endswith(
        "aot: 1 of 5 variants failed; nothing was published (--keep-going publishes the rest)"
    )
    kept = aot("build", folder, "-o", tmp_path / "b", "--keep-going")
    assert kept.returncode == 1
    with BundleReader(tmp_path / "b") as reader:
        assert reader.manifest.variants == 4
        assert [m.kernel for m in reader.manifest.missing] == ["broken"]
    assert aot("verify", tmp_path / "b").returncode == 1


def test_a_module_that_raises_at_import_is_a_failed_job(tmp_path: Path) -> None:
    """The error names the exception, not a traceback of ours."""
    source = SCALE_PY + "\nraise OSError('no such device')\n"
    folder = write(tmp_path / "k", scale_py=source, scale_yaml=SCALE_YAML)
    done = aot("build", folder, "-o", tmp_path / "b")
    assert done.returncode == 1
    assert "OSError: no such device" in done.stderr
    assert "Traceback" not in done.stderr


def test_autotuned_kernels_and_own_helpers_named_like_tritons(tmp_path: Path) -> None:
    """Field cases B14 and B15: decorators that want a driver at launch, helpers called max and sum."""
    source = SCALE_PY.replace(
        "@triton.jit\ndef scale",
        "@triton.jit\ndef max(a, b):\n    return a + b\n\n\n"
        "@triton.jit\ndef sum(a):\n    return max(a, a)\n\n\n"
        "@triton.autotune(configs=[triton.Config({'BLOCK': 64})], key=['n'])\n"
        "@triton.heuristics({'BLOCK': lambda args: 64})\n"
        "@triton.jit\ndef scale",
    ).replace("x * factor", "sum(x) * factor")
    folder = write(tmp_path / "k", scale_py=source, scale_yaml=SCALE_YAML)
    done = aot("build", folder, "-o", tmp_path / "b")
    assert done.returncode == 0, done.stderr


def test_two_folders_with_helpers_of_one_name(tmp_path: Path) -> None:
    """Field case B15: each kernel gets the helpers.py beside it, imported by name or relatively."""
    digests = []
    for folder, factor, dot in (("a", 2, ""), ("b", 3, ".")):
        line = f"from {dot}helpers import twist"
        write(
            tmp_path / "k" / folder,
            helpers_py=f"import triton\n\n\n@triton.jit\ndef twist(x):\n    return x * {factor}\n",
            scale_py=SCALE_PY.replace("import triton\n", f"import triton\n{line}\n", 1).replace(
                "x * factor", "twist(x) * factor"
            ),
            scale_yaml=SCALE_YAML.replace("kernel: scale", f"kernel: scale_{folder}"),
        )
        assert aot("build", tmp_path / "k" / folder, "-o", tmp_path / folder, "-j", 1).returncode == 0
        digests.append({row["sha256"] for row in json.loads(aot("ls", tmp_path / folder, "--json").stdout)})
    assert aot("build", tmp_path / "k", "-o", tmp_path / "both", "-j", 1).returncode == 0
    both = {row["sha256"] for row in json.loads(aot("ls", tmp_path / "both", "--json").stdout)}
    assert not digests[0] & digests[1]
    assert both == digests[0] | digests[1]


def test_output_is_a_file_or_holds_something_else(tmp_path: Path) -> None:
    """Nothing of the user's is overwritten: exit code 2, one sentence, before anything compiles."""
    folder = scale_folder(tmp_path / "k")
    (tmp_path / "file").write_text("mine")
    done = aot("build", folder, "-o", tmp_path / "file")
    assert (done.returncode, done.stderr) == (
        2, f"aot: {tmp_path / 'file'}: found a file, wanted a folder for the bundle; choose another -o\n",
    )  # fmt: skip
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    done = aot("build", folder, "-o", tmp_path / "other")
    assert done.returncode == 2
    assert "found a folder with other content (notes.txt)" in done.stderr
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"


def test_a_new_build_replaces_the_old_bundle(tmp_path: Path) -> None:
    """The old pack goes when the new manifest stands; nothing else is left, modes follow the umask."""
    folder = scale_folder(tmp_path / "k")
    out = tmp_path / "b"
    assert aot("build", folder, "-o", out).returncode == 0
    before = set(os.listdir(out))
    write(folder, scale_py=SCALE_PY.replace("x * factor", "x * factor + 1"))
    assert aot("build", folder, "-o", out).returncode == 0
    after = set(os.listdir(out))
    assert len(after) == 2
    assert after & before == {"manifest.json"}
    assert verify(out) == ()
    umask = os.umask(0)
    os.umask(umask)
    assert {stat.S_IMODE(p.stat().st_mode) for p in out.iterdir()} == {0o666 & ~umask}


def test_builders_side_by_side_leave_one_sound_bundle(tmp_path: Path) -> None:
    """Field case C03: several processes build into one folder, none fails, nothing half is left."""
    folder = scale_folder(tmp_path / "k")
    command = [*AOT, "build", str(folder), "-o", str(tmp_path / "b"), "-j", "1"]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert verify(tmp_path / "b") == ()
    assert len(os.listdir(tmp_path / "b")) == 2


def test_ptxas_that_is_none(tmp_path: Path) -> None:
    """Field case C28: a wrong TRITON_PTXAS_PATH is one error before anything compiles."""
    folder = scale_folder(tmp_path / "k")
    for path in ("/nonexistent/ptxas", str(tmp_path), "ptxas"):
        done = aot("build", folder, "-o", tmp_path / "b", TRITON_PTXAS_PATH=path)
        assert (done.returncode, done.stderr) == (
            1, f"aot: TRITON_PTXAS_PATH: found {path!r}, wanted an executable ptxas; correct or unset it\n",
        )  # fmt: skip
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho hello\n")
    fake.chmod(0o755)
    done = aot("build", folder, "-o", tmp_path / "b", TRITON_PTXAS_PATH=str(fake))
    assert done.returncode == 1
    assert "found a program that prints no CUDA release, wanted ptxas" in done.stderr
    assert not (tmp_path / "b").exists()


def test_targets_that_ptxas_or_we_do_not_know(tmp_path: Path) -> None:
    """Field cases B10 and B12: one error, exit code not zero, no bundle."""
    folder = scale_folder(tmp_path / "k")
    for text, nearest in (("sm_090", "sm_90"), ("sm_9O", "sm_90"), ("sm_999", "sm_90")):
        done = aot("build", folder, "--target", text, "-o", tmp_path / "b")
        assert done.returncode == 2
        assert done.stderr.startswith(f"aot: found target {text!r}, wanted one of sm_75, ")
        assert done.stderr.endswith(f"did you mean {nearest!r}?\n")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "target"),
    [(t, t) for t in ("sm_80", "sm_90", "sm_90a", "sm_100a", "sm_120")] + [("90", "sm_90"), ("9.0", "sm_90")],
)
def test_every_kind_of_target_builds(tmp_path: Path, text: str, target: str) -> None:
    """Plain and architecture-specific targets, and every spelling of one."""
    out = tmp_path / "b"
    folder = scale_folder(tmp_path / "k")
    done = aot("build", folder, "--target", text, "--filter", "dtype=float32", "-o", out)
    assert done.returncode == 0, done.stderr
    assert verify(out) == ()
    with BundleReader(out) as reader:
        assert [pack.target for pack in reader.manifest.packs] == [target]


def test_building_opens_no_driver(tmp_path: Path) -> None:
    """Field case B14: libcuda is never opened. A file of that name that cannot load proves it."""
    trap = tmp_path / "lib"
    trap.mkdir()
    (trap / "libcuda.so.1").write_bytes(b"not a library")
    folder = scale_folder(tmp_path / "k")
    done = aot("build", folder, "-o", tmp_path / "b", LD_LIBRARY_PATH=str(trap), HOME="/nonexistent")
    assert done.returncode == 0, done.stderr


def test_a_moved_bundle_and_links_to_it(tmp_path: Path) -> None:
    """Field case C27: a bundle is relocatable, and may stand behind a link."""
    out = tmp_path / "b"
    assert aot("build", scale_folder(tmp_path / "k"), "-o", out).returncode == 0
    shutil.move(out, tmp_path / "moved")
    (tmp_path / "link").symlink_to("moved")
    assert verify(tmp_path / "link") == ()


def test_kill_in_the_middle_needs_no_cleaning(tmp_path: Path) -> None:
    """Field case C18: after kill -9 the next build works, and no bundle is half there."""
    folder = scale_folder(tmp_path / "k")
    out = tmp_path / "b"
    for seconds in (0.3, 0.8, 1.4):
        process = subprocess.Popen(
            [*AOT, "build", str(folder), "-o", str(out), "-j", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if (out / "manifest.json").exists():
            assert verify(out) == ()
    assert aot("build", folder, "-o", out).returncode == 0
    assert verify(out) == ()


def test_opening_while_the_bundle_is_replaced(tmp_path: Path) -> None:
    """Field case C03: whoever opens a bundle sees the old one or the new one, never a half."""
    folder = scale_folder(tmp_path / "k")
    contents = []
    for source in (SCALE_PY, SCALE_PY.replace("x * factor", "x * factor + 1")):
        write(folder, scale_py=source)
        assert aot("build", folder, "-o", tmp_path / "b").returncode == 0
        contents.append({p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()})
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            for files in contents:
                packs = {name: data for name, data in files.items() if name != "manifest.json"}
                _publish(tmp_path / "b", packs, files["manifest.json"])

    builder = threading.Thread(target=replace)
    builder.start()
    try:
        for _ in range(200):
            with BundleReader(tmp_path / "b") as reader:
                for kernel in reader.manifest.kernels:
                    for ref in kernel.tables:
                        assert len(reader.table(ref)) == ref.count
    finally:
        stop.set()
        builder.join()
