"""Build sdist and wheel, look inside, install the wheel alone: ``python -m tests.wheel_check``."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WANTED = (
    "aot/__init__.py",
    "aot/build/plan.py",
    "aot/include/aot.h",
    "aot/include/aot/json.h",
    "aot/loader/_native.abi3.so",
    "aot/loader/bundle.py",
    "aot/loader/ops/reductions.py",
    "aot/kernel_specs/reductions/reduce.py",
)

# Run in an environment that has the base install alone: the loader must not miss anything.
PROBE = """
import sys
import aot, aot.loader, aot.reader, aot.loader.bundle, aot.loader.driver
for heavy in ("torch", "triton", "yaml", "click"):
    assert heavy not in sys.modules, heavy
from aot.loader import native
assert native.available(), native.reason()
try:
    aot.open("/nonexistent")
except aot.errors.AotError as error:
    print("loader:", error)
"""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def _check_without_compiler(folder: Path) -> None:
    """A machine without a compiler gets a pure wheel, not a failed build."""
    made = folder / "pure"
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(made)],
        check=True,
        cwd=ROOT,
        env=dict(os.environ) | {"CC": "false"},
    )
    wheel = next(made.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        native = [name for name in archive.namelist() if name.endswith(".so")]
    if native or not wheel.name.endswith("-py3-none-any.whl"):
        raise SystemExit(f"{wheel.name}: found {native} of a build without a compiler, wanted a pure wheel")


def _check_names(names: list[str], what: str) -> None:
    tops = {name.split("/")[0] for name in names}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    if packages != {"aot"}:
        raise SystemExit(f"{what}: found top-level {sorted(packages)}, wanted aot alone")
    missing = [name for name in WANTED if name not in names]
    if missing:
        raise SystemExit(f"{what}: found no {', '.join(missing)}; is this a checkout without symbolic links?")
    specs = [name for name in names if name.endswith(".yaml")]
    if not specs:
        raise SystemExit(f"{what}: found no kernel spec")


def main() -> None:
    """Check the distribution, or exit with a sentence that says what is wrong."""
    for link in ("build", "loader", "kernel_specs", "include"):
        if not (ROOT / "aot" / link).is_symlink():
            raise SystemExit(
                f"aot/{link}: wanted a symbolic link to ../{link}; clone with core.symlinks=true"
            )
    with tempfile.TemporaryDirectory() as folder:
        # The wheel is built from the sdist, as it is where people install from source.
        _run(sys.executable, "-m", "build", "--outdir", folder)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            _check_names(archive.namelist(), wheel.name)
        with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
            if not any(name.endswith("/loader/bundle.py") for name in archive.getnames()):
                raise SystemExit("sdist: found no loader")
        if "-cp310-abi3-" not in wheel.name:
            raise SystemExit(f"{wheel.name}: wanted the tag of the native launcher, cp310-abi3")
        _check_without_compiler(Path(folder))
        environment = Path(folder, "venv")
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        _run(python, "-m", "pip", "install", "-q", str(wheel))
        subprocess.run([python, "-I", "-c", PROBE], check=True, cwd=folder)
        shown = subprocess.run(
            [str(environment / "bin" / "aot"), "ls", "x"], cwd=folder, capture_output=True, text=True
        )
        if shown.returncode != 2 or "pip install" not in shown.stderr:
            raise SystemExit(
                f"aot without its extra: found {shown.returncode} {shown.stderr!r}, wanted a hint"
            )
        print(f"{wheel.name}: sound")


if __name__ == "__main__":
    main()
