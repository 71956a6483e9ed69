"""The command line as a process: its streams, the signals that end it, the packages that it may lack."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from bundlemaker import Draft, make_bundle, pointer, variant
from commandline import AOT, aot
from kernelfolder import SCALE_PY, scale_folder, write


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest bundle."""
    return make_bundle(tmp_path_factory.mktemp("cli") / "b", Draft(variants=[variant(pointer("x"))]))


def test_output_that_no_one_reads(bundle: Path) -> None:
    """A closed pipe, a full disk and no output at all are no traceback."""
    command = " ".join((*AOT, "ls", str(bundle)))
    for text, code in ((f"set -o pipefail; {command} | true", 1), (f"{command} > /dev/full", 1),
                       (f"{command} >&-", 0), (f"{command} >&- 2>&-", 0)):  # fmt: skip
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr == ("aot: No space left on device\n" if "full" in text else "")


def test_paths_that_the_output_cannot_write(tmp_path: Path) -> None:
    """Field case C25: a path outside the output's encoding, and one that is not even UTF-8."""
    folder = scale_folder(tmp_path / "k")
    assert aot("build", folder, "-o", tmp_path / "b", "--filter", "dtype=float32").returncode == 0
    for name in ("ü — x", os.fsdecode(b"x\xffy")):
        path = shutil.copytree(tmp_path / "b", tmp_path / name)
        done = aot("verify", path, "--json", PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["bundle"] == str(path)
        done = aot("verify", path, PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith(": sound, 2 variants, 2 cubins, targets sm_90a\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_build_that_is_stopped_leaves_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, number: int, code: int
) -> None:
    """Field case C18: no process, no temporary file, no half bundle after Ctrl-C or an end asked for."""
    folder = scale_folder(tmp_path / "k")
    # Long enough to be stopped in the middle: the module waits while it is imported.
    write(
        folder,
        scale_py=SCALE_PY
        + f"\nopen({str(tmp_path / 'begun')!r}, 'w').close()\nimport time\ntime.sleep(60)\n",
    )
    # The name of a socket has room for 107 bytes, and pytest's folders have long names.
    temporary = Path(tempfile.mkdtemp(prefix="aot"))
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    process = subprocess.Popen(
        [*AOT, "build", str(folder), "-o", str(tmp_path / "b"), "-j", "2"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors.lstrip()) == (code, "aot: stopped\n")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "b").exists()
    # The server of the workers sees a moment later that its pipe has closed.
    deadline = time.monotonic() + 10
    while _living(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _living(process.pid) == []


def _living(session: int) -> list[int]:
    """The processes of a session that still run; ended ones may wait for their parent."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, sid = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(sid) == session and state not in "ZX":
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("module", "args"),
    [("click", ["plan", "k"]), ("yaml", ["plan", "k"]), ("elftools", ["verify", "BUNDLE"])],
)
def test_a_package_that_is_not_installed(bundle: Path, module: str, args: list[str]) -> None:
    """Whatever part of the [build] extra is missing, the command says how to get it."""
    code = f"import sys; sys.modules[{module!r}] = None\nfrom aot.cli import main; main(sys.argv[1:])"
    args = [str(bundle) if arg == "BUNDLE" else arg for arg in args]
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"aot: found no {module}")
    assert done.stderr.endswith("install it with: pip install 'aot-kernels[build]'\n")
