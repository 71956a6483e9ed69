"""What this machine has, read without importing torch or Triton and without making a CUDA context."""

from __future__ import annotations

import ast
import os
import re
import stat
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from aot.errors import DriverError
from aot.loader.driver import Device, get_driver

# Variables that change what the loader, the driver or torch do.
_VARIABLES = (
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_ORDER",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "TRITON_INTERPRET",
)

_NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"),
    *("ocfs2", "orangefs", "smb3", "smbfs", "wekafs"),
}
# The rest of FUSE that services meet (sshfs, s3fs, gcsfuse, juicefs …) is a network's.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.snapfuse", "fuse.squashfuse", "fuse.squashfuse_ll"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """The CUDA driver: the CUDA version that it supports, or the ``error`` that says why there is none;
    ``bindings`` is the version of cuda-bindings."""

    version: str | None
    error: str | None
    bindings: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """The torch that an import would find, and the CUDA version that it was built with (None: without)."""

    version: str
    cuda: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """What a folder lies on: ``type`` and ``mount`` point, None where they are not known.
    ``shared``: every user of the machine may write the folder."""

    type: str | None
    mount: str | None
    read_only: bool
    network: bool
    shared: bool


def driver_and_gpus() -> tuple[DriverFacts, tuple[Device, ...]]:
    """Open the driver and list the GPUs; an error is part of the answer."""
    bindings = version_of("cuda-bindings")
    try:
        driver = get_driver()
        return DriverFacts(version=driver.cuda, error=None, bindings=bindings), driver.survey()
    except DriverError as error:
        return DriverFacts(version=None, error=str(error), bindings=bindings), ()


def version_of(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_facts() -> TorchFacts | None:
    """Read what torch says of itself, or None where there is none. An import takes seconds, and may fail."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return TorchFacts(version=version_of("torch") or "unknown", cuda=None)
    found: dict[str, object] = {}
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            found |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    cuda = found.get("cuda")
    return TorchFacts(version=str(found.get("__version__", "unknown")), cuda=str(cuda) if cuda else None)


def environment() -> dict[str, str]:
    """The variables that are set and matter."""
    names = [*(name for name in os.environ if name.startswith("AOT_")), *_VARIABLES]
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def file_system(path: str | os.PathLike[str], mountinfo: str = "/proc/self/mountinfo") -> FileSystem:
    """What ``path`` lies on, by the kernel's list of mounts."""
    real = os.path.realpath(path)
    type_ = mount = None
    for point, found in _mounts(mountinfo):
        inside = point == "/" or real == point or real.startswith(point + "/")
        # Of mounts on one place, the last hides the others.
        if inside and (mount is None or len(point) >= len(mount)):
            mount, type_ = point, found
    return FileSystem(
        type=type_,
        mount=mount,
        read_only=bool(os.statvfs(real).f_flag & os.ST_RDONLY),
        network=type_ in _NETWORK or (str(type_).startswith("fuse.") and type_ not in _LOCAL_FUSE),
        shared=bool(os.stat(real).st_mode & stat.S_IWOTH),
    )


def _mounts(mountinfo: str) -> list[tuple[str, str]]:
    try:
        text = Path(mountinfo).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        if separator:
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), before.split(" ")[4])
            mounts.append((point, after.split(" ")[0]))
    return mounts
