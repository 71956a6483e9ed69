"""The spec language: what a file means, and what is said of one that is wrong."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_text import KERNELS, Folder, text

from aot.build.specfile import load_specs, spec_sha256
from aot.errors import SpecError, UsageError
from aot.expr import Expr
from aot.spec import (
    Axis,
    Block,
    BucketAxis,
    ConstexprParam,
    DTypeValue,
    Fixed,
    Launch,
    PointerParam,
    Rule,
    ScalarParam,
    Table,
)
from aot.target import Target


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def value_of(folder: Folder, written: str, **parts: str) -> object:
    spec = folder.spec(BLOCK=f"  BLOCK: {{constexpr: {written}}}", **parts)
    return next(p.value for p in spec.params if isinstance(p, ConstexprParam) and p.name == "BLOCK")


# What a spec means ---------------------------------------------------------------------------


def test_a_whole_spec(folder: Folder) -> None:
    spec = folder.spec(
        axes="axes: {n: {buckets: [1024, any]}, io: {zip: [dtype, out], rows: [[fp16, half], "
        "[float16, float32]]}, acc: $out, op: [sum, max]}",
        x_ptr="  x_ptr: {pointer: $dtype, align: [1, 16], storage: auto}",
        y_ptr="  y_ptr: {pointer: $acc, align: 16}",
        stride="  stride: {int: int64, specialize: [any, 16, 1]}",
        launch="launch: {grid: ['cdiv(n, BLOCK)', 2], num_warps: {by: op, sum: 4, max: 8}, maxnreg: 64}",
        rules="exclude: [{out: fp32, n: [any], target: 9.0a, why: spills}]\n"
        "include: [{n: 64, dtype: float64, out: float64, acc: float64, op: sum, why: the loss}]",
    )
    assert spec.kernel == "scale"
    assert (spec.file, spec.line) == ("a.yaml", 1)
    assert spec.source.path == str(folder.path / "kernels.py")
    assert (spec.source.module, spec.source.function) == (None, "scale")
    assert spec.blocks == (
        Block(
            axes=(
                BucketAxis(name="n", bounds=(1024, None), of=Expr("name", name="n")),
                Axis(names=("dtype", "out"), rows=(("float16", "float16"), ("float16", "float32"))),
                Axis(names=("acc",), rows=(("$out",),)),
                Axis(names=("op",), rows=(("sum",), ("max",))),
            )
        ),
    )
    assert spec.params == (
        PointerParam(name="x_ptr", dtype="$dtype", align=(16, 1), storage="auto"),
        PointerParam(name="y_ptr", dtype="$acc", align=(16,), storage="native"),
        ScalarParam(name="n", type="int32", specialize=("any",)),
        ScalarParam(name="stride", type="int64", specialize=("1", "16", "any")),
        ScalarParam(name="eps", type="float32", specialize=("any",)),
        ConstexprParam(name="BLOCK", value=Fixed(value=1024)),
        ConstexprParam(name="OP", value=Expr("name", name="$op")),
    )
    assert spec.launch == Launch(
        grid=(Expr.parse("cdiv(n, BLOCK)"), Expr.parse("2")),
        num_warps=Table(by="op", rows=(("sum", 4), ("max", 8))),
        num_stages=Fixed(value=3),
        num_ctas=Fixed(value=1),
        maxnreg=Fixed(value=64),
        fp_fusion=True,
    )
    assert spec.targets == (Target(80), Target(90, True))
    assert spec.exclude == (
        Rule(match=(("out", ("float32",)), ("n", (None,)), ("target", ("sm_90a",))), why="spills"),
    )
    assert spec.include == (
        Rule(
            match=(
                ("n", (64,)),
                ("dtype", ("float64",)),
                ("out", ("float64",)),
                ("acc", ("float64",)),
                ("op", ("sum",)),
            ),
            why="the loss",
        ),
    )
    assert hash(spec) == hash(folder.load(Path("a.yaml").read_text())[0])


def test_the_defaults(folder: Folder) -> None:
    spec = folder.load(
        "spec_version: 1\nkernel: c\nsource: kernels.py:copy\n"
        "params: {x_ptr: {pointer: int8}, BLOCK: {constexpr: 8}}\ntargets: [90]\n"
    )[0]
    assert spec.blocks == (Block(axes=()),)
    assert spec.params[0] == PointerParam(name="x_ptr", dtype="int8", align=(1,), storage="native")
    assert spec.launch == Launch(
        grid=None,
        num_warps=Fixed(value=4),
        num_stages=Fixed(value=3),
        num_ctas=Fixed(value=1),
        maxnreg=None,
        fp_fusion=True,
    )
    assert (spec.exclude, spec.include) == ((), ())


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1024", Fixed(value=1024)),
        ("-1", Fixed(value=-1)),
        ("1e-5", Fixed(value=1e-5)),
        ("true", Fixed(value=True)),
        ("null", Fixed(value=None)),
        ("{text: fast}", Fixed(value="fast")),
        ('{text: "yes"}', Fixed(value="yes")),
        ("{dtype: half}", DTypeValue(name="float16")),
        ("{dtype: $dtype}", DTypeValue(name="$dtype")),
        ("$dtype", Expr("name", name="$dtype")),
        ('"min(64, 2*7)"', Expr.parse("min(64, 2*7)")),
        ("{by: op, sum: 1, max: {text: b}}", Table(by="op", rows=(("sum", 1), ("max", "b")))),
        (
            "{by: dtype, fp16: {dtype: fp32}, fp32: {dtype: $dtype}}",
            Table(
                by="dtype",
                rows=(("float16", DTypeValue(name="float32")), ("float32", DTypeValue(name="$dtype"))),
            ),
        ),
        ("{by: n, any: 9, else: 2 * 4}",
         Table(by="n", rows=((None, 9), (1024, Expr.parse("2*4"))), otherwise=(Expr.parse("2*4"),))),
        ("{by: target, sm_80: 1, 9.0a: 2, 90: 3}",
         Table(by="target", rows=(("sm_80", 1), ("sm_90a", 2), ("sm_90", 3)))),
    ],
)  # fmt: skip
def test_constexpr_values(folder: Folder, written: str, value: object) -> None:
    assert value_of(folder, written) == value


def test_values_of_an_axis_keep_their_types(folder: Folder) -> None:
    spec = folder.spec(axes='axes: {dtype: fp32, n: {buckets: [8]}, op: [1, true, 1.0, "1", off-by-one]}')
    axis = spec.blocks[0].axes[2]
    assert isinstance(axis, Axis)
    assert [(type(v), v) for (v,) in axis.rows] == [
        (int, 1),
        (bool, True),
        (float, 1.0),
        (str, "1"),
        (str, "off-by-one"),
    ]
    assert spec.blocks[0].axes[0] == Axis(names=("dtype",), rows=(("float32",),))


def test_strings_that_no_parameter_uses_as_a_dtype_stay_as_they_are(folder: Folder) -> None:
    spec = folder.spec(axes="axes: {dtype: fp32, n: {buckets: [8]}, op: [half, float16]}")
    assert spec.blocks[0].axes[2] == Axis(names=("op",), rows=(("half",), ("float16",)))


def test_claims_from_tables(folder: Folder) -> None:
    spec = folder.spec(
        axes="axes: {dtype: fp32, aligned: [true, false], n: {buckets: [8]}, op: sum}",
        x_ptr="  x_ptr: {pointer: $dtype, align: {by: aligned, true: 16, false: 1}}",
        stride="  stride: {int: int64, specialize: {by: aligned, true: 16, else: any}}",
    )
    assert spec.params[0] == PointerParam(
        name="x_ptr",
        dtype="$dtype",
        align=Table(by="aligned", rows=((True, 16), (False, 1))),
        storage="native",
    )
    assert spec.params[3] == ScalarParam(
        name="stride",
        type="int64",
        specialize=Table(by="aligned", rows=((True, "16"), (False, "any")), otherwise=("any",)),
    )


def test_a_table_picks_by_type_and_value() -> None:
    table = Table(by="a", rows=((1, 10), (True, 20), (None, 30)))
    assert [table.pick(1), table.pick(True), table.pick(None)] == [10, 20, 30]
    with pytest.raises(LookupError, match=r"^the table by a has no row for 1\.0 and no 'else'|for 1\.0$"):
        table.pick(1.0)
    assert Table(by="a", rows=((1, 10),), otherwise=(5,)).pick("x") == 5
    assert Table(by="a", rows=((1, 10),), otherwise=(5,)).results == (10, 5)


def test_blocks_are_united(folder: Folder) -> None:
    spec = folder.spec(
        axes="axes:\n- {dtype: fp16, n: {buckets: [8, any]}, op: [sum]}\n"
        "- {op: max, dtype: [fp32, fp64], n: {buckets: [64]}}",
        BLOCK="  BLOCK: {constexpr: {by: n, 8: 1, 64: 2, any: 3}}",
    )
    assert [block.names for block in spec.blocks] == [("dtype", "n", "op"), ("op", "dtype", "n")]


def test_an_extent_of_several_parameters(folder: Folder) -> None:
    spec = folder.spec(axes="axes: {dtype: fp32, size: {buckets: [64], of: n * stride}, op: sum}")
    assert spec.blocks[0].axes[1] == BucketAxis(name="size", bounds=(64,), of=Expr.parse("n*stride"))


SHARED = """\
spec_version: 1
axes: {dtype: [fp16, fp32]}
targets: [sm_90]
exclude: [{dtype: fp32, why: slow}]
kernels:
- kernel: a
  source: kernels.py:copy
  params: {x_ptr: {pointer: $dtype}, BLOCK: {constexpr: 8}}
- kernel: b
  source: kernels.py:copy
  axes: [{k: [1, 2]}, {k: 3}]
  params: {x_ptr: {pointer: $dtype}, BLOCK: {constexpr: $k}}
  exclude: [{k: 3, why: broken}]
  include: [{dtype: fp64, k: 4, why: asked}]
  targets: [sm_80]
"""


def test_kernels_share_axes(folder: Folder) -> None:
    a, b = folder.load(SHARED)
    dtype = Axis(names=("dtype",), rows=(("float16",), ("float32",)))
    assert (a.kernel, a.line, b.kernel, b.line) == ("a", 6, "b", 9)
    assert a.blocks == (Block(axes=(dtype,)),)
    assert [block.axes for block in b.blocks] == [
        (dtype, Axis(names=("k",), rows=((1,), (2,)))),
        (dtype, Axis(names=("k",), rows=((3,),))),
    ]
    assert (a.targets, b.targets) == ((Target(90),), (Target(80),))
    assert [rule.why for rule in b.exclude] == ["slow", "broken"]
    assert [rule.why for rule in a.exclude] == ["slow"]
    assert [rule.why for rule in b.include] == ["asked"]


def test_a_shared_fault_is_reported_once(folder: Folder) -> None:
    assert folder.faults(SHARED.replace("fp16", "fp17")) == [
        "2:16: found dtype 'fp17', wanted one of float16, bfloat16, float32, float64, int8, int16, int32, "
        "int64, uint8, uint16, uint32, uint64, bool, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, "
        "float8_e5m2fnuz, float8_e8m0fnu, complex32, complex64, complex128; did you mean 'fp16'?"
    ]


def test_kernels_need_targets_of_their_own_or_shared_ones(folder: Folder) -> None:
    assert folder.faults(SHARED.replace("targets: [sm_90]\n", "")) == [
        "5:3: found no key 'targets', wanted a list of targets"
    ]


def test_a_module_as_source(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("somepackage/__init__.py", "raise RuntimeError('imported')")
    folder.write("somepackage/inner/kernels.py", KERNELS)
    monkeypatch.syspath_prepend(folder.path)
    source = folder.spec(source="source: somepackage.inner.kernels:scale").source
    assert (source.path, source.module, source.function) == (None, "somepackage.inner.kernels", "scale")


# What is said of a wrong one -------------------------------------------------------------------


def listed_dtypes() -> str:
    from aot.dtypes import DTYPES

    return ", ".join(DTYPES)


KEYS = "spec_version, kernel, source, axes, params, launch, general, targets, exclude, include"
PARAM_LIST = "x_ptr, y_ptr, n, stride, eps, BLOCK, OP"


@pytest.mark.parametrize(
    ("parts", "faults"),
    [
        # The file's own keys.
        ({"head": "spec_version: 2"}, ["1:15: found 2, wanted 1"]),
        ({"head": ""}, ["1:1: found no key 'spec_version', wanted 1"]),
        (
            {"kernel": "kernal: scale"},
            [
                "1:1: found no key 'kernel', wanted a name of letters, digits and _ . -",
                f"2:1: found the key 'kernal', wanted {KEYS}; did you mean 'kernel'?",
            ],
        ),
        ({"kernel": "kernel: 5"}, ["2:9: found 5, wanted a name of letters, digits and _ . -"]),
        ({"kernel": "kernel: no"},
         ["2:9: found no, which YAML 1.1 reads as false, wanted a name of letters, digits and _ . -; "
          'quote it ("no")']),
        ({"kernel": "kernel: 'a b'"}, ["2:9: found 'a b', wanted a name of letters, digits and _ . -"]),
        ({"kernel": f"kernel: {'k' * 201}"}, ["2:9: found 201 characters, wanted at most 200"]),
        ({"kernel": "kernel: [a]"}, ["2:9: found a list, wanted a name of letters, digits and _ . -"]),
        ({"kernel": 'kernel: "a\\n"'}, ["2:9: found 'a\\n', wanted a name of letters, digits and _ . -"]),
        ({"targets": "targets:"}, ["14:9: found nothing, wanted a list of targets"]),
        ({"targets": "targets: []"}, ["14:10: found a list of no items, wanted a list of targets"]),
        ({"targets": "targets: [sm_90, 9.0]"},
         ["14:18: found sm_90 a second time, wanted each value once"]),
        # Sources.
        ({"source": "source: kernels.py"},
         ["3:9: found the source 'kernels.py', wanted kernels.py:function (a path relative to this file) or "
          "package.module:function"]),
        ({"source": "source: /kernels.py:scale"},
         ["3:9: found the source '/kernels.py:scale', wanted kernels.py:function (a path relative to this "
          "file) or package.module:function"]),
        ({"source": "source: scale_kernels.pyc:scale"},
         ["3:9: found no module 'scale_kernels' on Python's path, wanted the one of "
          "'scale_kernels.pyc:scale'; install it or set PYTHONPATH"]),
        ({"source": "source: kernels.v2.py:scale"},
         ["3:9: found the file name 'kernels.v2.py', wanted one with no dot but that of .py"]),
        # Axes.
        ({"axes": "axes: {dtyp: [fp16], n: {buckets: [8]}, op: 1}"},
         ["6:20: found the axis 'dtype', wanted dtyp, n, op; did you mean 'dtyp'?"]),
        ({"axes": "axes: {dtype: [fp16, float16], n: {buckets: [8]}, op: [a, a]}"},
         ["4:22: found float16 a second time, wanted each value once",
          "4:59: found a a second time, wanted each value once"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8]}, op: []}"},
         ["4:44: found a list of no items, wanted a list of at least one value"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8]}, op: null}"},
         ["4:44: found null, wanted a string, a number, true, false or $axis; quote it (\"null\")"]),
        ({"axes": "axes: {dtype: [16], n: {buckets: [8]}, op: 1}"},
         ["4:16: found 16, wanted a value of the axis 'dtype'; quote it (\"16\")"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8, 4, 0, any, 16]}, op: 1}"},
         ["4:41: found 0, wanted an integer from 1 to 2**63 - 1, or any"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8, 4]}, op: 1}"},
         ["4:38: found 4 after 8, wanted bounds in ascending order"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8, any, 16]}, op: 1}"},
         ["4:38: found any before the end, wanted it as the last bound"]),
        ({"axes": "axes: {dtype: fp16, m: {buckets: [8]}, op: 1}"},
         ["4:21: found 'm' as the extent of buckets, wanted an int parameter: n, stride; say with 'of:' "
          "what the bucket bounds"]),
        ({"axes": "axes: {dtype: fp16, m: {buckets: [8], of: strid * eps}, op: 1}"},
         ["4:43: found 'eps' as the extent of buckets, wanted an int parameter: n, stride",
          "4:43: found 'strid' as the extent of buckets, wanted an int parameter: n, stride; did you mean "
          "'stride'?"]),
        ({"axes": "axes: {op: $dtype, dtype: fp16, n: {buckets: [8]}}"},
         ["4:12: found $dtype, wanted $ and an earlier axis that is a list: there is none"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8]}, op: $n}"},
         ["4:44: found $n, wanted $ and an earlier axis that is a list: dtype"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8]}, op: $dtyp}"},
         ["4:44: found $dtyp, wanted $ and an earlier axis that is a list: dtype; did you mean 'dtype'?"]),
        ({"axes": "axes: {io: {zip: [dtype, op], rows: [[fp16], [fp16, 1], [half, 1]]}, n: {buckets: [8]}}"},
         ["4:39: found a row of 1 values, wanted 2: dtype, op"]),
        ({"axes": "axes: {io: {zip: [dtype, op], rows: [[fp16, 1], [half, 1]]}, n: {buckets: [8]}}"},
         ["4:50: found the row half, 1 a second time, wanted each value once"]),
        ({"axes": "axes: {io: {zip: [dtype, op], rows: [[fp16, 1]]}, dtype: fp32, n: {buckets: [8]}}"},
         ["4:51: found the axis 'dtype' a second time, wanted it once (first on line 4)"]),
        ({"axes": "axes: {dtype: fp16, n: {bucket: [8]}, op: 1}"},
         ["4:25: found the key 'bucket', wanted one of buckets, zip for an axis; did you mean 'buckets'?"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8]}, op: 1, target: sm_90}"},
         ["4:47: found 'target', wanted an axis' name (not target, why, by or else)"]),
        ({"axes": "axes: [{dtype: fp16, n: {buckets: [8]}, op: 1}, {dtype: fp16, n: {buckets: [8]}}]"},
         ["12:19: found the axis 'op', wanted one that every block has"]),
        # Parameters.
        ({"n": ""}, [
            "4:35: found 'n' as the extent of buckets, wanted an int parameter: stride; say with 'of:' what "
            "the bucket bounds",
            "6:3: found no claim for n, wanted every parameter of scale once",
            "12:17: found the name 'n', wanted an int parameter, a constexpr or $axis: BLOCK, OP, stride; "
            "write $n for the axis"]),
        ({"stride": "  strides: {int: int64}"}, [
            "6:3: found no claim for stride, wanted every parameter of scale once",
            "9:3: found the parameter 'strides', wanted one of scale: " + PARAM_LIST
            + "; did you mean 'stride'?"]),
        ({"x_ptr": "", "eps": "  eps: {float: float32}\n  x_ptr: {pointer: $dtype}"},
         ["6:3: found 'y_ptr' where scale has 'x_ptr', wanted its parameters in order: " + PARAM_LIST]),
        ({"n": "  n: {int: int32}\n  n: {int: int32}"},
         ["9:3: found the key 'n' a second time, wanted it once (first on line 8)"]),
        ({"eps": "  eps: {constexpr: 1}"},
         ["10:3: found 'eps' claimed as a constexpr, wanted pointer, int or float: scale does not "
          "annotate it "
          "with tl.constexpr"]),
        ({"BLOCK": "  BLOCK: {int: int32}"},
         ["11:3: found 'BLOCK' claimed as no constexpr, wanted {constexpr: …}: scale annotates it with "
          "tl.constexpr"]),
        ({"x_ptr": "  x_ptr: {pointr: fp16}"},
         ["6:11: found the key 'pointr', wanted one of pointer, int, float, constexpr for a parameter; "
          "did you "
          "mean 'pointer'?"]),
        ({"x_ptr": "  x_ptr: {}"},
         ["6:10: found an empty mapping, wanted one of pointer, int, float, constexpr for a parameter"]),
        ({"x_ptr": "  x_ptr: fp16"}, ["6:10: found 'fp16', wanted a parameter"]),
        ({"x_ptr": "  x_ptr: {pointer: fp16, int: int8}"},
         ["6:26: found the key 'int', wanted pointer, align, storage; did you mean 'pointer'?"]),
        ({"x_ptr": "  x_ptr: {pointer: flot32, align: 8}"}, [
            f"6:20: found dtype 'flot32', wanted one of {listed_dtypes()}; did you mean 'float32'?",
            "6:35: found 8, wanted 16 or 1"]),
        ({"x_ptr": "  x_ptr: {pointer: $dtype, align: [16, 16]}"},
         ["6:40: found 16 a second time, wanted each value once"]),
        ({"x_ptr": "  x_ptr: {pointer: $dtype, storage: bit}"},
         ["6:37: found 'bit', wanted native, bits or auto; did you mean 'bits'?"]),
        ({"x_ptr": "  x_ptr: {pointer: $n}"},
         ["6:20: found the axis $n, which has buckets, wanted one of dtypes"]),
        ({"stride": "  stride: {int: float32, specialize: [16, 2]}"}, [
            "9:17: found dtype 'float32', wanted one of int8, int16, int32, int64, uint8, uint16, uint32, "
            "uint64, bool; did you mean 'int32'?",
            "9:43: found 2, wanted 1, 16 or any"]),
        ({"stride": "  stride: {int: bool, specialize: 1}"},
         ["9:3: found a bool 'stride' specialized, wanted 'specialize: any'"]),
        ({"eps": "  eps: {float: float8_e5m2}"},
         ["10:16: found dtype 'float8_e5m2', wanted one of float16, bfloat16, float32, float64; did you mean "
          "'float32'?"]),
        # Constexprs.
        ({"OP": "  OP: {constexpr: sum}"},
         ["12:19: found the name 'sum', wanted a constexpr or $axis: BLOCK; write {text: \"sum\"} for a "
          "string"]),
        ({"OP": "  OP: {constexpr: op}"},
         ["12:19: found the name 'op', wanted a constexpr or $axis: BLOCK; write $op for the axis"]),
        ({"OP": "  OP: {constexpr: fast mode}"},
         ["12:24: found 'mode', wanted an operator or the end in the expression 'fast mode'; write {text: …} "
          "for a string"]),
        ({"OP": "  OP: {constexpr: no}"},
         ["12:19: found no, which YAML 1.1 reads as false, wanted a number, true, false, null or an "
          'expression; write {text: "no"} for a string']),
        ({"OP": "  OP: {constexpr: }"},
         ["12:19: found nothing, wanted a number, true, false, null or an expression"]),
        ({"OP": "  OP: {constexpr: 'BLOCK +'}"},
         ["12:27: found the end, wanted a name, an integer or '(' in the expression 'BLOCK +'; write "
          "{text: …} for a string"]),
        ({"OP": "  OP: {constexpr: min(BLOCK, 4)}"}, [
            "12:28: found 'the end', wanted ')' in the expression 'min(BLOCK'; quote an expression that "
            "holds "
            "a comma",
            "12:30: found the key '4)', wanted constexpr; quote an expression that holds a comma"]),
        ({"BLOCK": "  BLOCK: {constexpr: next_power_of_2($n)}"},
         ["11:22: found the axis $n, whose bucket 'any' has no number, wanted a table {by: n, …}"]),
        ({"BLOCK": "  BLOCK: {constexpr: $n}"},
         ["11:22: found the axis $n, whose bucket 'any' has no number, wanted a table {by: n, …}"]),
        ({"BLOCK": "  BLOCK: {constexpr: $op * 2}"},
         ["11:22: found the axis $op, whose value sum is no integer, wanted an axis of integers"]),
        ({"BLOCK": "  BLOCK: {constexpr: $nn + 1}"},
         ["11:22: found the axis 'nn', wanted dtype, n, op; did you mean 'n'?"]),
        ({"BLOCK": "  BLOCK: {constexpr: OP + 1}"},
         ["11:22: found the constexpr 'OP', which is the axis $op, wanted one that is an integer"]),
        ({"BLOCK": "  BLOCK: {constexpr: OP + 1}", "OP": "  OP: {constexpr: {text: a}}"},
         ["11:22: found the constexpr 'OP', which is a string, wanted one that is an integer"]),
        ({"BLOCK": "  BLOCK: {constexpr: OP + 1}", "OP": "  OP: {constexpr: BLOCK + 1}"},
         ["11:3: found BLOCK, OP defined by each other, wanted no loop"]),
        ({"BLOCK": "  BLOCK: {constexpr: {txt: a}}"},
         ["11:23: found the key 'txt', wanted one of by, text, dtype for a value; did you mean 'text'?"]),
        ({"BLOCK": "  BLOCK: {constexpr: {text: a, dtype: fp16}}"},
         ["11:22: found a mapping with more keys, wanted {text: …} alone"]),
        ({"BLOCK": "  BLOCK: {constexpr: {dtype: floaty}}"},
         [f"11:30: found dtype 'floaty', wanted one of {listed_dtypes()}; did you mean 'float'?"]),
        # Tables.
        ({"launch": "launch: {maxnreg: {sm_80: 64}}"},
         ["13:19: found no key 'by', wanted an axis' name or target"]),
        ({"BLOCK": "  BLOCK: {constexpr: {by: m, 1: 2}}"},
         ["11:27: found the axis 'm', wanted dtype, n, op, target"]),
        ({"BLOCK": "  BLOCK: {constexpr: {by: n}}"},
         ["11:22: found a table without rows, wanted a row for each value"]),
        ({"BLOCK": "  BLOCK: {constexpr: {by: n, 1024: 2}}"},
         ["11:22: found no row for any, wanted one for every value of the axis 'n', or else: …"]),
        ({"BLOCK": "  BLOCK: {constexpr: {by: n, 1024: 2, 2048: 3, any: 4}}"},
         ["11:39: found 2048, wanted a value of the axis 'n': 1024, any"]),
        ({"BLOCK": "  BLOCK: {constexpr: {by: op, sum: 2, mx: 3, max: 4}}"},
         ["11:39: found mx, wanted a value of the axis 'op': sum, max; did you mean 'max'?"]),
        ({"BLOCK": "  BLOCK: {constexpr: {by: dtype, fp16: 2, half: 3, float32: 4}}"},
         ["11:43: found a row for float16 a second time, wanted one"]),
        ({"BLOCK": "  BLOCK: {constexpr: {by: target, sm_90: 2, sm_80: 1}}"},
         ["11:22: found no row for sm_90a, wanted one for every value of targets, or else: …"]),
        # Launch options.
        ({"launch": "launch: {grid: [n, n, n, n]}"},
         ["13:16: found a list of 4 items, wanted a list of one to three expressions"]),
        ({"launch": "launch: {grid: n}"},
         ["13:16: found n, wanted a list of one to three expressions"]),
        ({"launch": "launch: {grid: [m]}"},
         ["13:17: found the name 'm', wanted an int parameter, a constexpr or $axis: BLOCK, OP, n, stride"]),
        ({"launch": "launch: {grid: [eps]}"},
         ["13:17: found the name 'eps', wanted an int parameter, a constexpr or $axis: BLOCK, OP, n, "
          "stride"]),
        ({"launch": "launch: {num_warps: 3, num_stages: 0, num_ctas: true, maxnreg: 256, fp_fusion: yes}"}, [
            "13:21: found 3, wanted a power of 2 from 1 to 32, or an expression",
            "13:36: found 0, wanted an integer from 1 to 32, or an expression",
            "13:49: found true, wanted a power of 2 from 1 to 16, or an expression",
            "13:64: found 256, wanted an integer from 1 to 255, an expression or null",
            "13:80: found yes, which YAML 1.1 reads as true, wanted true or false"]),
        ({"launch": "launch: {num_warps: n}"},
         ["13:21: found the name 'n', wanted a constexpr or $axis: BLOCK, OP; write $n for the axis"]),
        ({"launch": "launch: {num_warp: 4}"},
         ["13:10: found the key 'num_warp', wanted grid, num_warps, num_stages, num_ctas, maxnreg, "
          "fp_fusion; "
          "did you mean 'num_warps'?"]),
        # Rules.
        ({"rules": "exclude: [{dtype: fp16}]"}, ["15:11: found no key 'why', wanted the reason, as a "
        "string"]),
        ({"rules": "exclude: [{why: x}]"},
         ["15:11: found no axis, wanted {axis: value, …, why: reason}"]),
        ({"rules": "exclude: [{dtype: fp16, why: ''}]"},
         ["15:30: found '', wanted the reason, as a string"]),
        ({"rules": "exclude: [{dtyp: fp16, why: x}, {dtype: fp64, why: x}, {n: [1024, any, 8], why: x}]"}, [
            "15:12: found the axis 'dtyp', wanted dtype, n, op, target; did you mean 'dtype'?",
            "15:41: found float64, wanted a value of the axis 'dtype': float16, float32",
            "15:72: found 8, wanted a value of the axis 'n': 1024, any"]),
        ({"rules": "exclude: [{dtype: [fp16, half], why: x}]"},
         ["15:12: found a value of 'dtype' a second time, wanted each once"]),
        ({"rules": "include: [{dtype: fp64, n: 8, why: x}]"},
         ["15:11: found dtype, n, wanted every axis of a block: dtype, n, op"]),
        ({"rules": "include: [{dtype: [fp64, fp16], n: 8, op: sum, why: x}]"},
         ["15:19: found a list of 2 items, wanted one value"]),
        ({"rules": "include: [{dtype: fp64, n: -8, op: sum, why: x}]"},
         ["15:28: found -8, wanted an integer from 1 to 2**63 - 1, or any"]),
    ],
)  # fmt: skip
def test_faults(folder: Folder, parts: dict[str, str], faults: list[str]) -> None:
    """Field case B21 among them: a claim that cannot be is refused at its place, by its parameter's name."""
    assert folder.wrong(**parts) == faults


def test_every_fault_is_reported_in_the_order_of_the_files(folder: Folder) -> None:
    folder.write(
        "specs/b.yaml", text(kernel="kernel: 7", x_ptr="  x_ptr: {pointer: $dtyp}", source="source: x")
    )
    folder.write("specs/a.yaml", text(targets="targets: [sm_091]", source="source: ../kernels.py:scale"))
    with pytest.raises(SpecError) as caught:
        load_specs(["specs", "none.yaml", "kernels.py"])
    assert [line.partition(", ")[0] for line in str(caught.value).splitlines()] == [
        "specs/a.yaml:14:11: found target 'sm_091'",
        "specs/b.yaml:2:9: found 7",
        "specs/b.yaml:3:9: found the source 'x'",
        "specs/b.yaml:6:20: found the axis 'dtyp'",
        "none.yaml: found no such file or directory",
        "kernels.py: found a file",
    ]
    assert caught.value.exit_code == 2


def test_a_function_that_is_not_there(folder: Folder) -> None:
    assert folder.wrong(source="source: kernels.py:scael") == [
        f"3:9: found no function 'scael' in {folder.path / 'kernels.py'}, wanted one of scale, copy; "
        "did you mean 'scale'?"
    ]


def test_one_name_for_two_kernels(folder: Folder) -> None:
    """Field case C23: the same op in two spec files."""
    folder.write("one.yaml", text())
    folder.write("two.yaml", text())
    with pytest.raises(SpecError) as caught:
        load_specs(["one.yaml", "two.yaml"])
    assert str(caught.value) == (
        "two.yaml:2:9: found the kernel 'scale' a second time, wanted it once (first at one.yaml:2:9)"
    )


def test_one_kernel_twice_through_an_alias(folder: Folder) -> None:
    twice = SHARED.replace("- kernel: a", "- &a\n  kernel: a") + "- *a\n"
    assert folder.faults(twice) == [
        "7:11: found the kernel 'a' a second time, wanted it once (first at a.yaml:7:11)"
    ]


def test_a_pipe_is_no_spec(folder: Folder) -> None:
    os.mkfifo(folder.path / "a.yaml")
    with pytest.raises(SpecError, match=r"^a\.yaml: found no regular file, wanted a spec file$"):
        load_specs(["a.yaml"])


def test_a_cross_product_bomb_is_refused_by_count(folder: Folder) -> None:
    """Field case C24: 1000 values x 1000 buckets."""
    many = ", ".join(f"v{i}" for i in range(1000))
    bounds = ", ".join(str(i) for i in range(1, 1001))
    axes = f"axes: {{dtype: [fp16, fp32], n: {{buckets: [{bounds}]}}, op: [{many}]}}"
    assert folder.wrong(axes=axes, x_ptr="  x_ptr: {pointer: $dtype, align: [16, 1]}") == [
        "1:1: found 8000000 variants of scale (axes x claims x targets), wanted at most 1000000"
    ]


def test_folders_and_files(folder: Folder) -> None:
    folder.write("specs/z/one.yaml", text(kernel="kernel: one", source="source: ../../kernels.py:scale"))
    folder.write("specs/a.yml", text(kernel="kernel: two", source="source: ../kernels.py:scale"))
    folder.write("specs/notes.txt", "no spec")
    specs = load_specs([Path("specs"), "specs/a.yml", "./specs/../specs/z/one.yaml"])
    assert [(spec.kernel, spec.file) for spec in specs] == [
        ("two", os.path.join("specs", "a.yml")),
        ("one", os.path.join("specs", "z", "one.yaml")),
    ]


def test_a_folder_behind_a_link(folder: Folder) -> None:
    """Field case C27."""
    folder.write("real/a.yaml", text(source="source: kernels.py:scale"))
    folder.write("real/kernels.py", KERNELS)
    (folder.path / "link").symlink_to("real")
    assert [spec.file for spec in load_specs(["link"])] == [os.path.join("link", "a.yaml")]


def test_nothing_to_load(folder: Folder) -> None:
    (folder.path / "empty").mkdir()
    for paths, message in (
        (["empty"], "empty: found a folder with no .yaml file, wanted at least one"),
        ([], "found no spec, wanted a .yaml file or a folder of them"),
        (["a.txt"], "a.txt: found nothing, wanted a .yaml file or a folder of them"),
    ):
        with pytest.raises(SpecError) as caught:
            load_specs(paths)
        assert str(caught.value) == message


def test_the_hash_of_a_spec(folder: Folder) -> None:
    name = folder.write("a.yaml", b"\xff")
    assert spec_sha256(name) == hashlib.sha256(b"\xff").hexdigest()
    with pytest.raises(UsageError, match=r"^b\.yaml: found no such file or directory, wanted a spec file$"):
        spec_sha256("b.yaml")


WORDS = [
    *("{}", "[]", "null", "~", "no", "n", "y", "1", "-1", "1.5", "true", "any", "sum", "$dtype", "$n", "$op"),
    *(
        "fp16",
        "fp64",
        "sm_80",
        "by",
        "else",
        "why",
        "target",
        "<<",
        "''",
        "[1, 2]",
        "BLOCK + 1",
        "*x",
        "!x 1",
    ),
    *("{by: op, sum: 1, max: 2}", "{text: a}", "{dtype: $op}", "{buckets: [1, any]}"),
    "{zip: [a, b], rows: [[1, 2]]}",
]
BASE = text(
    axes="axes: {dtype: [float16, float32], n: {buckets: [1024, any]}, op: [sum, max]}",
    x_ptr="  x_ptr: {pointer: $dtype, align: [16, 1], storage: auto}",
    stride="  stride: {int: int64, specialize: [16, any]}",
    BLOCK="  BLOCK: {constexpr: {by: n, 1024: 1, else: 2}}",
    launch="launch: {grid: [n], num_warps: {by: op, sum: 4, max: 8}, maxnreg: 64, fp_fusion: false}",
    rules="exclude: [{dtype: fp32, op: [max], why: x}]\ninclude: [{dtype: fp64, n: 8, op: sum, why: x}]",
)
PIECES = re.findall(r"[\w$.]+|\W", BASE)
PLACES = [index for index, piece in enumerate(PIECES) if re.match(r"[\w$.]", piece)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(PLACES), st.sampled_from(WORDS), min_size=1, max_size=3))
def test_no_change_makes_loading_fail_otherwise(folder: Folder, changes: dict[int, str]) -> None:
    """Whatever word stands where, the answer is a spec or a report, and the report has one line a fault."""
    pieces = [changes.get(index, piece) for index, piece in enumerate(PIECES)]
    try:
        (spec,) = folder.load("".join(pieces))
    except SpecError as error:
        faults = error.faults
    else:
        faults = ()
        assert hash(spec)
    assert all(re.fullmatch(r"a\.yaml:\d+:\d+: found .+, wanted [^\n]+", fault) for fault in faults)
