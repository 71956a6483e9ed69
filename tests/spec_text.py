"""A small kernel and its spec, for the tests that change one thing of it and look at the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.build.specfile import load_specs
from aot.errors import SpecError
from aot.spec import KernelSpec

KERNELS = """\
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, y_ptr, n, stride, eps, BLOCK: tl.constexpr, OP: tl.constexpr):
    pass


@triton.jit
def copy(x_ptr, BLOCK: tl.constexpr):
    pass
"""

# One part a line: a test replaces the part that it is about.
PARTS = {
    "head": "spec_version: 1",
    "kernel": "kernel: scale",
    "source": "source: kernels.py:scale",
    "axes": "axes: {dtype: [float16, float32], n: {buckets: [1024, any]}, op: [sum, max]}",
    "params": "params:",
    "x_ptr": "  x_ptr: {pointer: $dtype}",
    "y_ptr": "  y_ptr: {pointer: float32}",
    "n": "  n: {int: int32}",
    "stride": "  stride: {int: int64}",
    "eps": "  eps: {float: float32}",
    "BLOCK": "  BLOCK: {constexpr: 1024}",
    "OP": "  OP: {constexpr: $op}",
    "launch": "launch: {grid: [n]}",
    "targets": "targets: [sm_80, sm_90a]",
    "rules": "",
}


def text(**parts: str) -> str:
    """The small spec with some parts replaced; an empty one is left out."""
    assert parts.keys() <= PARTS.keys()
    return "\n".join(part for part in (PARTS | parts).values() if part) + "\n"


class Folder:
    """A folder with ``kernels.py``, as the current directory: reports then name files without it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("kernels.py", KERNELS)

    def write(self, name: str, data: str | bytes) -> str:
        """Write a file and return its name."""
        place = self.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.encode() if isinstance(data, str) else data)
        return name

    def load(self, data: str | bytes) -> tuple[KernelSpec, ...]:
        """Load one spec file, ``a.yaml``."""
        return load_specs([self.write("a.yaml", data)])

    def spec(self, **parts: str) -> KernelSpec:
        """The one spec of the small file with some parts replaced."""
        (spec,) = self.load(text(**parts))
        return spec

    def faults(self, data: str | bytes) -> list[str]:
        """The faults of ``a.yaml``, without the file's name where they start with it."""
        with pytest.raises(SpecError) as caught:
            self.load(data)
        assert all("\n" not in fault for fault in caught.value.faults)
        return [fault.removeprefix("a.yaml:") for fault in caught.value.faults]

    def wrong(self, **parts: str) -> list[str]:
        """The faults of the small file with some parts replaced."""
        return self.faults(text(**parts))
