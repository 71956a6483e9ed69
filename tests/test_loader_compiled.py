"""The loader with cubins that Triton compiled, against the fake driver: build and loader agree.

The fake driver reads each parameter where the compiled cubin says it is, so a launch here shows
what the kernel would see on a GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakecuda import compile_driver, run_script

from aot.build.plan import make_plan
from aot.build.run import build
from aot.build.specfile import load_specs
from aot.loader.select import PointerValue, Request, select
from aot.manifest import Binary, CubinRef, Entry
from aot.target import Target

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def scalars(
    x_ptr, out_ptr, flag, half, brain, one, eps, scale, small, big, n,
    BLOCK: tl.constexpr, OP: tl.constexpr, TYPE: tl.constexpr = tl.float32,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i * one, mask=i < n).to(TYPE)
    if OP == "sum":
        x += half + brain + eps
    if flag:
        x *= scale.to(TYPE)
    tl.store(out_ptr + i, x + small + big, mask=i < n)
"""

SPEC = """
spec_version: 1
kernel: scalars
source: kernels.py:scalars
axes:
  dtype: [float16, float32]
  op: [sum, prod]
params:
  x_ptr: {pointer: $dtype, align: [16, 1]}
  out_ptr: {pointer: float32, align: 1}
  flag: {int: bool}
  half: {float: float16}
  brain: {float: bfloat16}
  one: {int: int32, specialize: [1, any]}
  eps: {float: float32}
  scale: {float: float64}
  small: {int: int8}
  big: {int: uint64}
  n: {int: int64, specialize: [16, any]}
  BLOCK: {constexpr: 128}
  OP: {constexpr: $op}
  TYPE: {constexpr: {dtype: float32}}
launch: {num_warps: 2, grid: ["cdiv(n, BLOCK)"]}
targets: [sm_80, sm_90]
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spec")
    (folder / "kernels.py").write_text(KERNEL)
    (folder / "scalars.yaml").write_text(SPEC)
    return folder / "scalars.yaml"


@pytest.fixture(scope="module")
def bundle(spec: Path) -> Path:
    """The variants of one op and dtype, compiled: a few seconds."""
    plan = make_plan(load_specs([spec]), (Target.parse("sm_90"),), {"op": ("sum",), "dtype": ("float32",)})
    report = build(plan, spec.parent / "bundle", workers=1)
    assert report.failures == ()
    return spec.parent / "bundle"


def test_every_scalar_arrives(bundle: Path, tmp_path: Path) -> None:
    """Field cases B03, B05 and B23: what the compiled kernel reads, by its own records."""
    result = run_script(
        compile_driver(tmp_path),
        """
        import torch
        kernel = aot.open(PATH).kernel("scalars")
        for offset in (4096, 4100):
            for one in (1, 3):
                for n in (1000, 1024):
                    entry = kernel(
                        Array(offset=offset), Array(), True, 0.1, 0.1, one, 0.1, 0.1, -5, 2**64 - 1, n,
                        OP="sum", TYPE=torch.float32)
        answer(sorted({**entry.variant.axes}.items()))
        """,
        bundle,
    )
    assert result.value == [["dtype", "float32"], ["op", "sum"]]
    assert len(result.launches) == 8
    calls = [(o, one, n) for o in (4096, 4100) for one in (1, 3) for n in (1000, 1024)]
    for (offset, one, n), launch in zip(calls, result.launches, strict=True):
        codes = "QQ?e" + "H" + ("" if one == 1 else "i") + "fdbQq"
        params = [bytes.fromhex(data) for data in launch["params"]]
        # What is left are the hidden scratch pointers, null here.
        assert all(not any(data) for data in params[len(codes) :])
        values = [struct.unpack(f"<{c}", data)[0] for c, data in zip(codes, params, strict=False)]
        rounded = [struct.unpack(f"<{c}", struct.pack(f"<{c}", 0.1))[0] for c in "ef"]
        wanted = [2**40 + offset, 2**40 + 4096, True, rounded[0], 0x3DCD]
        wanted += [] if one == 1 else [3]
        assert values == [*wanted, rounded[1], 0.1, -5, 2**64 - 1, n]
        assert (launch["grid"], launch["block"]) == ([8, 1, 1], 64)


def test_the_yaml_of_a_miss_adds_the_variant(spec: Path, bundle: Path, tmp_path: Path) -> None:
    """What the message says to write, written into the spec, plans a variant that serves the call."""
    result = run_script(
        compile_driver(tmp_path),
        """
        kernel = aot.open(PATH).kernel("scalars")
        rest = True, 0.1, 0.1, 1, 0.1, 0.1
        answer([error(kernel, *call, **options)[1] for call, options in (
            ((Array("int8"), Array(), *rest, 5, 5, 5, 64, "max"), {"num_warps": 4}),
            ((Array(), Array(), *rest, 200, 5, 17, 128, "sum"), {}),
        )])
        """,
        bundle,
    )
    x = {"x_ptr": PointerValue(dtype="int8", aligned=True)}
    calls: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        ({**x, "n": 5, "small": 5}, {"BLOCK": 64, "OP": "max"}, {"num_warps": 4}),
        ({"small": 200, "n": 17}, {"BLOCK": 128, "OP": "sum"}, {}),
    ]
    for message, (args, constexprs, options) in zip(result.value, calls, strict=True):
        text = message.split("build again:\n")[1]
        assert yaml.safe_load(text)["kernel"] == "scalars"
        mended = merge(yaml.safe_load(SPEC), yaml.safe_load(text))
        file = tmp_path / "mended.yaml"
        file.write_text(yaml.safe_dump(mended, sort_keys=False))
        (tmp_path / "kernels.py").write_text(KERNEL)
        plan = make_plan(load_specs([file]), (Target.parse("sm_90"),), {})
        entries = [entry(planned.variant) for kernel in plan.kernels for planned in kernel.variants]
        request = Request(
            kernel="scalars",
            args=args,
            constexprs=constexprs,
            options=options,
            capability=90,
            max_shared=232448,
        )
        assert select(request, entries).entry is not None


def merge(spec: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with the sections of a suggestion written into it."""
    for section, value in change.items():
        if isinstance(value, dict):
            spec[section].update(value)
        else:
            spec[section] = value
    return spec


def entry(variant: Any) -> Entry:
    """A planned variant as if it were compiled."""
    ref = CubinRef(sha256="0" * 64, offset=0, size=0, raw_size=0, codec="none")
    binary = Binary(
        symbol="k", cubin=ref, params=(), hidden=0, shared=0, registers=0, local=0, scratch=(0, 1)
    )
    return Entry(variant=variant, binary=binary)
