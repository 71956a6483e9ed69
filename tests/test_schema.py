"""The JSON Schema: as committed, and true of every spec that the parser takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from spec_text import Folder, text

from aot.build.schema import json_schema
from aot.build.specfile import load_specs
from aot.build.yamlnodes import Faults, ListNode, MapNode, Node, ScalarNode, read_tree

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "kernel_specs").rglob("*.yaml"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def plain(node: Node | None) -> object:
    """The JSON that an editor makes of a YAML text: keys are strings."""
    match node:
        case ScalarNode():
            return node.text if node.kind in ("letter", "trap") else node.value
        case ListNode():
            return [plain(item) for item in node.items]
        case MapNode():
            return {key.text: plain(value) for key, value in node.entries}
    raise AssertionError("the text has no document")


def complaints(data: bytes) -> list[str]:
    tree = plain(read_tree(data, Faults("f")))
    return [error.message for error in jsonschema.Draft202012Validator(json_schema()).iter_errors(tree)]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_the_committed_schema_is_the_generated_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aot.build.schema"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    committed = (ROOT / "docs" / "spec-schema.json").read_text(encoding="utf-8")
    assert done.stdout == committed, "run: python -m aot.build.schema > docs/spec-schema.json"
    assert json.loads(committed) == json_schema()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_specs(name: str) -> None:
    assert load_specs([ROOT / name])
    assert complaints((ROOT / name).read_bytes()) == []


GOOD = {
    "small": text(),
    "lists and tables": text(
        axes="axes:\n- {dtype: [fp16], n: {buckets: [8, any], of: n * 2}, op: [1, true, a]}\n"
        "- {io: {zip: [dtype, op], rows: [[fp32, 1.5], [bf16, b]]}, n: {buckets: [8]}}",
        x_ptr="  x_ptr: {pointer: $dtype, align: [16, 1], storage: auto}",
        y_ptr="  y_ptr: {pointer: half, align: {by: dtype, fp16: 16, else: 1}}",
        stride="  stride: {int: int64, specialize: [1, 16, any]}",
        n="  n: {int: int32, specialize: any}",
        BLOCK="  BLOCK: {constexpr: {by: n, 8: {text: a}, any: {dtype: $dtype}}}",
        OP="  OP: {constexpr: null}",
        launch="launch: {grid: [n, 2], num_warps: {by: target, sm_80: 4, else: 8}, num_stages: 2, "
        "num_ctas: 1, maxnreg: null, fp_fusion: false}",
        targets="targets: [sm_80, 90a, 9.0]",
        rules="exclude: [{dtype: fp16, n: [8, any], target: sm_80, why: x}]\n"
        "include: [{dtype: fp64, op: c, n: any, why: asked}]",
    ),
    "shared": "spec_version: 1\naxes: {dtype: [fp16]}\ntargets: [sm_90]\nkernels:\n- kernel: c\n"
    "  source: kernels.py:copy\n  axes: {k: [1, 2]}\n"
    "  params: {x_ptr: {pointer: $dtype}, BLOCK: {constexpr: $k * 2}}\n",
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_parser_takes_is_valid(folder: Folder, name: str) -> None:
    assert folder.load(GOOD[name])
    assert complaints(GOOD[name].encode()) == []


def test_the_example_of_the_reference(folder: Folder) -> None:
    reference = (ROOT / "docs" / "reference" / "spec.md").read_text(encoding="utf-8")
    example = reference.split("```yaml\n")[1].split("```")[0]
    folder.write(
        "kernels.py",
        "import triton\nimport triton.language as tl\n@triton.jit\ndef rmsnorm_kernel(\n"
        "    x_ptr, out_ptr, stride, n_rows, n_cols, eps, BLOCK: tl.constexpr): pass\n",
    )
    (spec,) = folder.load(example)
    assert (spec.kernel, len(spec.params)) == ("rmsnorm", 7)
    assert complaints(example.encode()) == []


@pytest.mark.parametrize(
    "parts",
    [
        {"head": ""},
        {"head": "spec_version: 2"},
        {"kernel": "kernel: 'a b'"},
        {"kernel": "kernal: a"},
        {"axes": "axes: {dtype: []}"},
        {"axes": "axes: {target: [a]}"},
        {"axes": "axes: {n: {buckets: [0]}}"},
        {"axes": "axes: {n: {bucket: [1]}}"},
        {"x_ptr": "  x_ptr: {pointer: flot16}"},
        {"x_ptr": "  x_ptr: {pointer: fp16, align: 8}"},
        {"x_ptr": "  x_ptr: {pointer: fp16, align: [16, 16]}"},
        {"stride": "  stride: {int: float32}"},
        {"eps": "  eps: {float: int32}"},
        {"OP": "  OP: {constexpr: [1]}"},
        {"OP": "  OP: {constexpr: {by: op}}"},
        {"launch": "launch: {grid: []}"},
        {"launch": "launch: {num_warp: 4}"},
        {"launch": "launch: {fp_fusion: yes}"},
        {"targets": "targets: []"},
        {"targets": "targets: [sm_9O]"},
        {"rules": "exclude: [{dtype: fp16}]"},
        {"rules": "include: [{dtype: [fp16, fp32], why: x}]"},
    ],
)
def test_what_the_schema_refuses_the_parser_refuses_too(folder: Folder, parts: dict[str, str]) -> None:
    assert complaints(text(**parts).encode()) != []
    assert folder.wrong(**parts) != []
