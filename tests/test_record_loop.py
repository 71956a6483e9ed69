"""From a miss to a hit: build, run, record, ``aot spec from-record``, build again, run again.

Everything is real but the GPU: Triton compiles, the loader runs against the fake driver, and
every step is a command or a process as a user has it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commandline import aot
from fakecuda import run_script
from kernelfolder import write

SHIFT_PY = '''
import triton
import triton.language as tl


@triton.jit
def shift(x_ptr, out_ptr, stride, n, by, BLOCK: tl.constexpr, MODE: tl.constexpr):
    """Add a number to n elements that lie stride apart."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i * stride, mask=i < n, other=0)
    if MODE == "double":
        x = x + x
    tl.store(out_ptr + i, (x + by).to(out_ptr.dtype.element_ty), mask=i < n)


@triton.jit
def fill(x_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.full([BLOCK], 1 if OP == "one" else 0, x_ptr.dtype.element_ty), mask=i < n)
'''

SHIFT_YAML = """
# What the service had in the first week.
spec_version: 1
kernel: shift
source: shift.py:shift
axes:
  dtype: [float32]          # more to come
  n: {buckets: [256, 1024]}
params:
  x_ptr: {pointer: $dtype, align: 16}
  out_ptr: {pointer: $dtype, align: 16}
  stride: {int: int32, specialize: 1}
  n: {int: int32}
  by: {float: float32}
  BLOCK: {constexpr: {by: n, 256: 128, else: 256}}
  MODE: {constexpr: {text: once}}
launch: {grid: ["cdiv(n, BLOCK)"], fp_fusion: false}
targets: [sm_90a]
"""

FILL_YAML = """
spec_version: 1
axes: {dtype: [float32, float64], op: [one]}
targets: [sm_90a]
kernels:
- kernel: fill
  source: shift.py:fill
  params:
    x_ptr: {pointer: $dtype}
    n: {int: int32}
    OP: {constexpr: $op}
    BLOCK: {constexpr: 128}
"""

CALLS = """
bundle = aot.open(PATH)
shift, fill = bundle.kernel("shift"), bundle.kernel("fill")
def a(dtype="float32", offset=4096, device=0):
    return Array(dtype, offset, device)
answer({name: (error(kernel, *args, **more) or ["hit"])[0] for name, kernel, args, more in [
    ("served", shift, (a(), a(), 1, 1000, 0.5), {}),
    ("a new dtype", shift, (a("float16"), a("float16"), 1, 1000, 0.5), {}),
    ("one dtype in, another out", shift, (a(), a("float64"), 1, 1000, 0.5), {}),
    ("not aligned", shift, (a(offset=4100), a(), 1, 1000, 0.5), {}),
    ("neither aligned", shift, (a("bfloat16", 4098), a("bfloat16", 4098), 3, 1000, 0.5), {}),
    ("a stride", shift, (a(), a(), 7, 1000, 0.5), {}),
    ("over the last bucket", shift, (a(), a(), 1, 100_000, 0.5), {}),
    ("over 31 bits", shift, (a(), a(), 2**31, 1000, 0.5), {}),
    ("a large float", shift, (a(), a(), 1, 1000, 1e300), {}),
    ("a constexpr", shift, (a(), a(), 1, 1000, 0.5), {"MODE": "double"}),
    ("a block", shift, (a(), a(), 1, 1000, 0.5), {"BLOCK": 512}),
    ("a block of a table", shift, (a(), a(), 1, 100, 0.5), {"BLOCK": 64}),
    ("an option", shift, (a(), a(), 1, 1000, 0.5), {"num_warps": 8}),
    ("another GPU", shift, (a(device=1), a(device=1), 1, 1000, 0.5), {}),
    ("shared axes", fill[(1,)], (a(), 5), {"OP": "zero"}),
    ("a plain constexpr", fill[(1,)], (a("int64"), 5), {"OP": "one", "BLOCK": 64}),
]})
"""


def run(driver: Path, bundle: Path, file: Path) -> dict[str, str]:
    """What becomes of each call, with misses recorded."""
    value = run_script(driver, CALLS, bundle, env={"AOT_RECORD": str(file)}, devices="9.0,8.0").value
    assert isinstance(value, dict)
    return value


def test_the_loop(driver: Path, tmp_path: Path) -> None:
    """Every kind of miss is a hit after one round, in place and in a copy elsewhere."""
    specs = write(tmp_path / "specs", shift_py=SHIFT_PY, shift_yaml=SHIFT_YAML, fill_yaml=FILL_YAML)
    bundle, file = tmp_path / "bundle", tmp_path / "calls.jsonl"
    assert aot("build", specs, "-o", bundle, "-j", 2).returncode == 0
    first = run(driver, bundle, file)
    assert first.pop("served") == "hit"
    assert set(first.values()) == {"KernelMiss"}

    shown = aot("spec", "from-record", file, "--spec", specs)
    assert shown.returncode == 0, shown.stderr
    assert "# more to come" in shown.stdout
    assert (specs / "shift.yaml").read_text() == SHIFT_YAML

    copied = aot("spec", "from-record", file, "--spec", specs, "-o", tmp_path / "new")
    assert copied.returncode == 0, copied.stderr
    changed = (tmp_path / "new" / "shift.yaml").read_text()
    assert "# What the service had in the first week.\n" in changed
    assert "dtype: [float32" in changed
    assert "source: ../specs/shift.py:shift\n" in changed
    again = aot("spec", "from-record", file, "--spec", specs, "-o", tmp_path / "new", "--json")
    report = json.loads(again.stdout)
    assert (report["served"], report["added"], report["written"], report["problems"]) == (15, 0, [], [])
    assert (tmp_path / "new" / "shift.yaml").read_text() == changed

    built = aot("build", tmp_path / "new", "-o", bundle, "-j", 2)
    assert built.returncode == 0, built.stderr
    assert set(run(driver, bundle, tmp_path / "none.jsonl").values()) == {"hit"}
    assert (tmp_path / "none.jsonl").read_bytes() == b""


@pytest.mark.slow
def test_in_place_and_what_cannot_be(driver: Path, tmp_path: Path) -> None:
    """A call that no spec can serve is a line and exit code 1, and the others are served all the same."""
    specs = write(tmp_path / "specs", shift_py=SHIFT_PY, shift_yaml=SHIFT_YAML, fill_yaml=FILL_YAML)
    bundle, file = tmp_path / "bundle", tmp_path / "calls.jsonl"
    assert aot("build", specs, "-o", bundle, "-j", 2).returncode == 0
    script = CALLS.replace("1, 1000, 0.5), {}),", "1, 0.25, 0.5), {}),", 1)
    run_script(driver, script, bundle, env={"AOT_RECORD": str(file)}, devices="9.0,8.0")
    with open(file, "a") as stream:
        stream.write('{"aot_record": 1, "by": "bun')
    done = aot("spec", "from-record", file, "--spec", specs, "-o", specs, "--exact")
    assert done.returncode == 1
    last = len(file.read_text().splitlines())
    assert done.stderr == (
        f"aot: {file}:{last}: passed over, the line was cut off\n"
        "aot: kernel 'shift': 1 call shift(x_ptr: float32, out_ptr: float32, stride = 1, n: float, "
        "by: float) on 9.0: n is int32, the call has a float\n"
    )
    assert f"wrote {specs / 'shift.yaml'}\n" in done.stdout
    assert "16 calls: 0 served by the specs as they were, 15 by what was added, 1 by none\n" in done.stdout
    shutil.rmtree(bundle)
    assert aot("build", specs, "-o", bundle, "-j", 2).returncode == 0
    assert set(run(driver, bundle, tmp_path / "none.jsonl").values()) == {"hit"}


def test_usage(tmp_path: Path) -> None:
    """Each wrong input is one sentence and exit code 2."""
    specs = write(tmp_path / "specs", shift_py=SHIFT_PY, shift_yaml=SHIFT_YAML)
    empty = tmp_path / "calls.jsonl"
    empty.touch()
    nothing = aot("spec", "from-record", empty, "--spec", specs)
    assert (nothing.returncode, nothing.stderr) == (0, "")
    assert nothing.stdout == ("0 calls: 0 served by the specs as they were, 0 by what was added, 0 by none\n")
    for args, sentence in [
        ((tmp_path / "no.jsonl", "--spec", specs), "found no such file or directory, wanted a record file"),
        ((empty, "--spec", tmp_path / "no.yaml"), "no.yaml: found no regular file, wanted a spec file"),
        ((empty, "--spec", specs, "-o", empty), "found a file, wanted a folder for the specs"),
        ((empty, "--spec", specs, "-o", ""), "found an empty path, wanted a folder for the specs"),
    ]:
        done = aot("spec", "from-record", *args)
        assert done.returncode == 2, done.stderr
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
