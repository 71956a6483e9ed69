"""For tests of records: specs, bundles of their planned variants, the way from a miss to a changed spec."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from bundlemaker import Draft, make_bundle
from kernelfolder import write

import aot
from aot.build.fromrecord import Revision, revise
from aot.build.plan import make_plan
from aot.build.specfile import load_specs
from aot.loader import record
from aot.loader.select import PointerValue, Request
from aot.manifest import Const
from aot.recordfile import read_records

# Anything that reads as a kernel: nothing here is compiled.
NORM_PY = """
import triton
import triton.language as tl

@triton.jit
def norm(x_ptr, out_ptr, stride, n_rows, n_cols, eps, BLOCK: tl.constexpr, MODE: tl.constexpr = "fast"):
    pass

@triton.jit
def fold(x_ptr, out_ptr, n, OP: tl.constexpr, ACC: tl.constexpr, KEEP: tl.constexpr):
    pass

@triton.jit
def sort(x_ptr, n, OP: tl.constexpr):
    pass
"""

NORM_YAML = """
# Rows are normalized.
spec_version: 1
kernel: norm
source: norm.py:norm   # beside this file
axes:
  dtype:        # what tensors hold
  - float16
  - float32
  n_cols: {buckets: [1024, 4096]}
params:
  x_ptr:   {pointer: $dtype, align: 16}
  out_ptr: {pointer: $dtype, align: [16]}
  stride:  {int: int64, specialize: 16}
  n_rows:  {int: int32}
  n_cols:  {int: int32}
  eps:     {float: float32}
  BLOCK:   {constexpr: {by: n_cols, 1024: 1024, 4096: 4096}}
  MODE:    {constexpr: {text: fast}}
launch: {grid: [n_rows], num_warps: {by: n_cols, 1024: 4, 4096: 8}}
targets: [sm_90a]
"""

FOLD_YAML = """
spec_version: 1
targets: [sm_80]
axes:
  op: [sum, prod]
  io: {zip: [dtype, acc], rows: [[float16, float32], [float32, float64]]}
kernels:
- kernel: fold
  source: norm.py:fold
  params:
    x_ptr: {pointer: $dtype}
    out_ptr: {pointer: $dtype}
    n: {int: int32}
    OP: {constexpr: $op}
    ACC: {constexpr: {dtype: $acc}}
    KEEP: {constexpr: null}
- kernel: sort
  source: norm.py:sort
  axes:
  - {n: {buckets: [64]}}
  - {wide: true}
  params:
    x_ptr: {pointer: $dtype}
    n: {int: int32}
    OP: {constexpr: $op}
"""

GIVEN: dict[str, tuple[str, ...]] = {
    "norm": ("x_ptr", "out_ptr", "stride", "n_rows", "n_cols", "eps"),
    "fold": ("x_ptr", "out_ptr", "n"),
    "sort": ("x_ptr", "n"),
}

_numbers = itertools.count()


def specs(folder: Path) -> Path:
    """The folder with three kernels, their two specs and nothing to compile."""
    return write(folder, norm_py=NORM_PY, norm_yaml=NORM_YAML, fold_yaml=FOLD_YAML)


def texts(folder: Path) -> dict[str, str]:
    """The specs of a folder."""
    return {str(path): path.read_text() for path in sorted(folder.glob("*.yaml"))}


def planned(changed: Mapping[str, str], where: Path, **binary: int) -> aot.Bundle:
    """A bundle of what the specs plan; its cubins have no code. ``binary``: fields of every binary."""
    plan = make_plan(load_specs(list(changed), changed))
    drafts = [
        Draft(
            name=kernel.spec.kernel,
            variants=[v.variant for v in kernel.variants],
            params=kernel.params,
            binary=dict(binary),
        )
        for kernel in plan.kernels
    ]
    return aot.open(make_bundle(where / f"bundle-{next(_numbers)}", *drafts))


def request(kernel: str, *values: object, capability: int = 90, **given: Const) -> Request:
    """A call: a dtype (``float32``, or ``float32:1`` where it is not aligned) or number for each
    parameter, constexprs in capitals, options by keyword."""
    args = {}
    for name, value in zip(GIVEN[kernel], values, strict=True):
        if isinstance(value, str):
            args[name] = PointerValue(dtype=value.partition(":")[0], aligned=":" not in value)
        else:
            args[name] = value  # type: ignore[assignment]
    return Request(
        kernel=kernel,
        args=args,
        constexprs={name: value for name, value in given.items() if name.isupper()},
        options={name: value for name, value in given.items() if not name.isupper()},  # type: ignore[misc]
        capability=capability,
        max_shared=200_000,
    )


def missed(bundle: aot.Bundle, requests: list[Request], file: Path) -> list[Request]:
    """Record the requests that a bundle does not serve, as a launch does, and return them."""
    found = []
    with record.record(file):
        for asked in requests:
            kernel = bundle.kernel(asked.kernel)
            if kernel.select(asked).entry is None:
                record.note_miss(bundle.reader, kernel.info, asked)
                found.append(asked)
    return found


def close_loop(
    folder: Path, requests: list[Request], where: Path, *, exact: bool = False
) -> tuple[Revision, dict[str, str], list[Request]]:
    """Record what specs do not serve and change them; return the change, the new texts, what still misses."""
    old = texts(folder)
    file = where / f"calls-{next(_numbers)}.jsonl"
    missed(planned(old, where), requests, file)
    revision = revise(list(old), old, read_records(file).records, exact=exact)
    new = old | {change.file: change.new for change in revision.files}
    left = missed(planned(new, where), requests, where / f"left-{next(_numbers)}.jsonl")
    return revision, new, left
