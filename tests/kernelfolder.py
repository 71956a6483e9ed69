"""Small kernels and specs that tests build: each test writes the folder it needs."""

from __future__ import annotations

import textwrap
from pathlib import Path

SCALE_PY = '''
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    """Multiply n elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x * factor, mask=i < n)
'''

SCALE_YAML = """
spec_version: 1
kernel: scale
source: scale.py:scale
axes:
  dtype: [float32, float64]
params:
  x_ptr: {pointer: $dtype, align: [16, 1]}
  out_ptr: {pointer: $dtype}
  n: {int: int32}
  factor: {float: $dtype}
  BLOCK: {constexpr: 256}
launch: {grid: ["cdiv(n, BLOCK)"], fp_fusion: false}
targets: [sm_90a]
"""


def write(folder: Path, **files: str) -> Path:
    """Write files given as ``name_ext="text"`` (``scale_py`` is ``scale.py``) and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        stem, _, extension = name.rpartition("_")
        (folder / f"{stem}.{extension}").write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


def scale_folder(folder: Path) -> Path:
    """A folder with the kernel ``scale`` and its spec: four variants."""
    return write(folder, scale_py=SCALE_PY, scale_yaml=SCALE_YAML)
