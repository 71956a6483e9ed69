"""``kernel[grid](…)`` and ``kernel.prepare`` by the native launcher and by Python: one meaning.

Every script runs both ways and has to give the same answer and the same launches, byte for byte but
for addresses; and the native launcher shows what it served.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pointer, scalar, variant
from cputensors import Both, make_both
from loaderscripts import simple

from aot.manifest import DTypeConst, ParamInfo

pytest.importorskip("aot.loader._native")

# Counts what native code served of kernel k, whatever the call was.
COUNT = """
kernel = BUNDLE.kernel("k")
def served_natively():
    return native.kernel_tally("k").hits if NATIVE is not None else 0
values, served = {}, {}
def case(what, function, *args, times=3, **kwargs):
    before = served_natively()
    values[what] = [outcome(f"{what}, {i}", function, *args, **kwargs) for i in range(times)]
    served[what] = served_natively() - before
"""


def full(tmp_path: Path) -> Path:
    """k(x, y, n, f, flag=False, BLOCK, OP, TYPE=fp32): pointers, numbers of each kind, constexprs."""
    variants = [
        variant(
            *(pointer("x", dtype, align), pointer("y", "float32", 1), scalar("n", "i64", claim)),
            *(scalar("f", "fp64"), scalar("flag", "i1")),
            *(constexpr("BLOCK", block), constexpr("OP", op), constexpr("TYPE", DTypeConst("float32"))),
            num_warps=warps,
        )
        for dtype in ("float32", "int8")
        for align in (16, 1)
        for claim in ("1", "16", "any")
        for block in (64, 128)
        for op in ("sum", "max")
        for warps in (4, 8)
    ]
    params = [
        *(ParamInfo(name=name, kind="pointer") for name in "xy"),
        *(ParamInfo(name=name, kind="scalar") for name in ("n", "f")),
        ParamInfo(name="flag", kind="scalar", has_default=True, default=False),
        *(ParamInfo(name=name, kind="constexpr") for name in ("BLOCK", "OP")),
        ParamInfo(name="TYPE", kind="constexpr", has_default=True, default=DTypeConst("float32")),
    ]
    draft = Draft(variants=variants, params=params, grid=("cdiv(n, BLOCK)",), binary={"salt": b"k"})
    return make_bundle(tmp_path / "bundle", draft)


def test_arguments(driver: Path, tmp_path: Path) -> None:
    result: Both = make_both(driver)(
        COUNT.replace("BUNDLE", "aot.open(PATH)")
        + """
import enum, numpy
x, y = tag("x", at(0, 32)), tag("y", at(0, 32))
call = kernel[(3,)]
class Size(enum.IntEnum):
    N = 5
class Text(str):
    pass
base = (x, y, 5, 0.5, True)
fixed = {"BLOCK": 64, "OP": "sum", "num_warps": 4}
def f(*args, **kwargs):
    return call(*args, **(fixed | kwargs))
case("plain", f, *base)
case("other tensors", f, tag("x2", at(0, 8)), tag("y2", at(0, 8)), 5, 0.5, True)
case("misaligned", f, tag("x3", at(1, 8)), y, 5, 0.5, True)
case("second misaligned", f, x, tag("y3", at(1, 8)), 5, 0.5, True)
case("int8", f, tag("i8", at(0, 8, dtype=torch.int8)), y, 5, 0.5, True)
case("int4", f, at(0, 8, dtype=torch.int8).view(torch.int4), y, 5, 0.5, True)
case("half", f, at(0, 8, dtype=torch.float16), y, 5, 0.5, True)
case("empty", f, torch.empty(0), y, 5, 0.5, True)
case("neg", f, torch._neg_view(x), y, 5, 0.5, True)
case("array", f, Array(), y, 5, 0.5, True)
for n in (1, 16, 17, 0, -1, 2**40, 2**63 - 1, -2**63, 2**63, 2**70, True, False, 1.0, Size.N, None, "5",
          numpy.int64(7), numpy.float64(7), numpy.bool_(True), torch.float32):
    case(f"n = {n!r} {type(n).__name__}", f, x, y, n, 0.5, True)
for number in (1, 1.0, True, 0.0, -0.0, float("nan"), float("inf"), 1e300, 2**60 + 1, None, 1j,
               numpy.float32(0.1)):
    case(f"f = {number!r} {type(number).__name__}", f, x, y, 5, number, True)
for flag in (0, 1, False, 2, 1.0, numpy.bool_(True)):
    case(f"flag = {flag!r} {type(flag).__name__}", f, x, y, 5, 0.5, flag)
case("by position", call, *base, 64, "sum", num_warps=4)
case("all by position", call, *base, 64, "sum", torch.float32, num_warps=4)
case("order", call, OP="sum", BLOCK=64, num_warps=4, flag=True, f=0.5, n=5, y=y, x=x)
case("built strings", f, *base, OP="".join(["s", "um"]), times=6)
case("built names", call, *base, **{"".join(["O", "P"]): "sum", "BL" + "OCK"[:]: 64, "num_" + "warps"[:]: 4})
built = {"".join(["", "x"]): x, "".join(["", "y"]): y}
case("built tensor names", lambda: call(**built, n=5, f=0.5, flag=True, **fixed))
case("other string", f, *base, OP="max")
case("string with a tail", f, *base, OP="sum\\0")
case("long string", f, *base, OP="sum" * 3000)
case("surrogate", f, *base, OP="\\udc80")
case("string subclass", f, *base, OP=Text("sum"))
case("block 128", f, *base, BLOCK=128)
case("block 64.0", f, *base, BLOCK=64.0)
case("block True", f, *base, BLOCK=True)
case("block left out", call, *base, OP="sum")
case("dtype", f, *base, TYPE=torch.float32)
case("other dtype", f, *base, TYPE=torch.float16)
case("warps 8", f, *base, num_warps=8)
case("warps None", f, *base, num_warps=None)
case("warps 5", f, *base, num_warps=5)
case("stages", f, *base, num_stages=3)
case("unknown name", f, *base, warps=4)
case("twice", f, *base, x=x)
case("too few", f, x, y, 5)
case("too many", call, *range(9))
case("hundred", call, *([x] * 100), times=1)
case("hundred names", call, *base, times=1, **{f"name{i}": i for i in range(200)})
case("by __call__", lambda: call.__call__(*base, **fixed))
case("unpacked", lambda: type(call).__call__(call, *base, **fixed) if NATIVE else call(*base, **fixed))
case("plain again", f, *base)
finish(values, **served)
""",
        full(tmp_path),
    )
    native = {what for what, count in result.served.items() if count}
    assert native >= {
        *("plain", "other tensors", "misaligned", "second misaligned", "int8", "empty", "n = 1 int"),
        *("n = 16 int", "n = 9223372036854775807 int", "n = True bool", "f = nan float", "f = -0.0 float"),
        *("f = 1 int", "f = 1.0 float", "flag = 1 int", "by position", "all by position", "order"),
        *("built strings", "built names", "other string", "block 128", "dtype", "warps 8"),
        *("block left out", "by __call__", "unpacked", "plain again"),
    }
    assert result.served["built strings"] >= 5
    assert not native & {"int4", "half", "neg", "array", "n = 9223372036854775808 int", "n = 1.0 float"}
    assert not native & {"string with a tail", "long string", "twice", "too few", "warps 5", "n = 5 Size"}


def test_grids(driver: Path, tmp_path: Path) -> None:
    result: Both = make_both(driver)(
        COUNT.replace("BUNDLE", "aot.open(PATH)")
        + """
import numpy
x, y = tag("x", at(0, 32)), tag("y", at(0, 32))
def call(grid):
    return lambda: kernel[grid](x, y, 500, 0.5, True, BLOCK=64, OP="sum")
case("warm", call((1,)))
class Odd(tuple):
    pass
grids = [(3,), (3, 2), (3, 2, 4), [3], [3, 2], (), (1, 1, 1, 1), (0,), (3, 0), [0], (-1,), (2**31 - 1,),
         (2**31,),
         (1, 65535), (1, 65536), (1, 1, 65535), (1, 1, 65536), (2**80,), (3.0,), ("3",), (None,), (True,),
         (numpy.int64(3),), (numpy.int64(0),), torch.Size([3]), Odd((2, 3)), 3, "3", {3: 1}]
for grid in grids:
    case(f"{type(grid).__name__} {grid!r}", call(grid))
    case(f"callable {type(grid).__name__} {grid!r}", call(lambda meta: grid))
case("None from a callable", call(lambda meta: None))
case("spec", lambda: kernel(x, y, 500, 0.5, True, BLOCK=64, OP="sum"))
case("spec, other block", lambda: kernel(x, y, 500, 0.5, True, BLOCK=128, OP="sum"))
case("spec, block left out", lambda: kernel(x, y, 500, 0.5, True, OP="sum"))
seen = []
def see(meta):
    seen.append({name: LABELS[value.data_ptr()][1] if isinstance(value, torch.Tensor) else str(value)
                 for name, value in meta.items()})
    meta.clear()
    return (2,)
z = tag("z", at(0, 32))
for other in (y, z, y):
    kernel[see](x, other, 500, 0.5, True, BLOCK=64, OP="sum", num_warps=4)
    kernel[see](x, other, n=500, f=0.5, OP="sum")
values["seen"] = seen
counts = []
def counting(result):
    def grid(meta):
        counts.append(1)
        return result
    return grid
for result in ((3,), (numpy.int64(3),), torch.Size([3]), (0,)):
    call(counting(result))()
values["counts"] = len(counts)
class Wrong(Exception):
    pass
def wrong(meta):
    raise Wrong("from the grid")
case("raises", call(wrong))
def missing(meta):
    return (meta["NONE"],)
case("missing", call(missing))
def again(meta):
    kernel[(9,)](x, z, 500, 0.5, True, BLOCK=64, OP="sum")
    native.invalidate()
    gc.collect()
    return (8,)
case("a launch inside", call(again))
bundle = aot.open(PATH)
inner = bundle.kernel("k")
def closing(meta):
    bundle.close()
    return (7,)
arguments = x, y, 500, 0.5, True, 64, "sum"
inner[(1,)](*arguments)
case("closes its bundle", lambda: inner[closing](*arguments), times=1)
values["closed"] = [outcome("", inner[(1,)], *arguments)[1].replace(PATH, "BUNDLE")]
values["stats"] = aot.stats()["kernels"]["k"]["hits"], aot.stats()["kernels"]["k"]["launches"]
finish(values, **served)
""",
        full(tmp_path),
    )
    assert result.value["counts"] == 4
    assert [tuple(meta.items())[1] for meta in result.value["seen"]] == [
        ("y", "y"), ("y", "y"), ("y", "z"), ("y", "z"), ("y", "y"), ("y", "y"),
    ]  # fmt: skip
    served = result.served
    assert served["tuple (3,)"] == served["list [3]"] == served["spec, other block"] + 1 == 3
    assert served["tuple (np.int64(3),)"] == served["Size torch.Size([3])"] == served["Odd (2, 3)"] == 3
    assert served["callable tuple (3, 2)"] == 3
    assert served["tuple (1, 65536)"] == served["int 3"] == served["raises"] == 0


def test_held_kernels(driver: Path, tmp_path: Path) -> None:
    result: Both = make_both(driver)(
        COUNT.replace("BUNDLE", "BUNDLE").replace(
            "kernel = BUNDLE", "bundle = aot.open(PATH)\nkernel = bundle"
        )
        + """
x, y = tag("x", at(0, 32)), tag("y", at(0, 32))
rest = 500, 0.5, True, 64, "sum"
held = kernel.prepare((3, 2), x, y, *rest)
spec = kernel.prepare(None, y=y, x=x, n=500, f=0.5, flag=True, OP="max", num_warps=8)
meta = kernel.prepare(lambda meta: (meta["BLOCK"], 2), x, y, *rest)
on = kernel.with_stream(77).prepare((1,), x, y, *rest)
unaligned = kernel.prepare((1,), tag("x1", at(1, 32)), y, *rest)
values["repr"] = [repr(h) for h in (held, spec, meta)]
values["entry"] = shown(held.entry), held.entry.variant.kernel
for name, h in (("held", held), ("spec", spec), ("meta", meta), ("on", on), ("unaligned", unaligned)):
    case(name, h, x, y)
case("others", held, tag("a", at(0, 4)), tag("b", at(1, 4)))
case("dtype", held, at(0, 4, dtype=torch.int8), y)
case("alignment", held, at(1, 4), y)
case("one", held, x)
case("three", held, x, y, x)
case("none", held)
case("keyword", held, x, y=y)
case("a number", held, x, 5)
case("array", held, Array(), y)
case("meta tensor", held, torch.empty(4, device="meta"), y)
case("neg", held, torch._neg_view(x), y)
case("int4", held, at(0, 8, dtype=torch.int8).view(torch.int4), y)
case("empty", held, torch.empty(0), y)
for grid in ((0,), (1, 0), (-1,), (2**31,), "3", lambda meta: (0,)):
    case(f"grid {grid if not callable(grid) else ()}", kernel.prepare, grid, x, y, *rest, times=1)
case("wrong", kernel.prepare, (1,), x, y, times=1)
case("array held", lambda: kernel.prepare((1,), Array(), Array(), *rest)(Array(offset=64), Array()))
bundle.close()
case("closed", held, x, y)
case("prepare when closed", lambda: outcome("", kernel.prepare, (1,), x, y, *rest)[1].replace(PATH, "B"))
native.invalidate()
case("invalidated", held, x, y)
os.environ["FAKECUDA_FAIL"] = "cuLaunchKernel:701"
case("failed", held, x, y)
del os.environ["FAKECUDA_FAIL"]
case("after it", held, x, y)
finish(values, **served)
""",
        full(tmp_path),
    )
    assert {what for what, count in result.served.items() if count == 3} == {
        *("held", "spec", "meta", "on", "unaligned", "others", "empty", "closed", "invalidated", "after it"),
    }
    assert result.value["failed"][0][0] == "DriverError"


def test_kernels_without_tensors(driver: Path, tmp_path: Path) -> None:
    """Their device is the current one, and their stream the default one, at every call."""
    path = make_bundle(tmp_path / "bundle", Draft(variants=[variant(scalar("n"))]))
    result: Both = make_both(driver)(
        """
        from aot.loader.driver import get_driver
        torch_adapter.current_device = lambda: None
        kernel = aot.open(PATH).kernel("k")
        for n in range(3):
            kernel[(1,)](5)
        driver = get_driver()
        with driver.current(driver.device(1)):
            kernel[(1,)](5)
            held = kernel.prepare((1,), 5)
        kernel[(1,)](5), held()
        finish(None)
        """,
        path,
        devices="9.0,9.0",
    )
    assert [launch["device"] for launch in result.launches] == [0, 0, 0, 1, 0, 1]


def test_many_parameters(driver: Path, tmp_path: Path) -> None:
    """More tensors or bytes than the native launcher takes go through Python, and arrive."""
    wide = variant(*(pointer(f"p{i}") for i in range(100)), kernel="wide")
    long = variant(pointer("p"), *(scalar(f"n{i}", "i64") for i in range(60)), kernel="long")
    path = make_bundle(
        tmp_path / "bundle", Draft(name="wide", variants=[wide]), Draft(name="long", variants=[long])
    )
    result: Both = make_both(driver)(
        """
        bundle = aot.open(PATH)
        tensors = [tag(f"t{i}", at(0, 4)) for i in range(100)]
        for i in range(2):
            bundle.kernel("wide")[(1,)](*tensors)
            bundle.kernel("wide")[(1,)](**{f"p{i}": t for i, t in reversed(list(enumerate(tensors)))})
            bundle.kernel("long")[(1,)](tensors[0], *range(3, 63))
        held = bundle.kernel("wide").prepare((1,), *tensors)
        held(*tensors[1:], tensors[0])
        finish(None)
        """,
        path,
    )
    assert len(result.launches) == 7


def test_clusters_and_shared_memory(driver: Path, tmp_path: Path) -> None:
    path = make_bundle(tmp_path / "bundle", simple(num_ctas=2, binary={"shared": 100_000}))
    result: Both = make_both(driver)(
        COUNT.replace("BUNDLE", "aot.open(PATH)")
        + """
x = tag("x", at(0, 4))
for grid in ((3,), (3, 2), (2**30 - 1,), (2**30,), (2**31 - 1,)):
    case(str(grid), kernel[grid], x, 5)
    case(f"callable {grid}", kernel[lambda meta: grid], x, 5)
held = kernel.prepare((2, 2), x, 5)
case("held", held, x)
finish(values, **served)
""",
        path,
    )
    assert {launch["call"] for launch in result.launches} == {"cuLaunchKernelEx"}
    assert result.served["(3, 2)"] == result.served["held"] == 3
    assert result.served["(1073741824,)"] == 0


def test_many_numbers(driver: Path, tmp_path: Path) -> None:
    """A table that is full starts again, and every number arrives."""
    result: Both = make_both(driver)(
        """
        kernel = aot.open(PATH).kernel("k")
        x = tag("x", at(0, 4))
        most = 0
        for n in [*range(3, 4300), *range(3, 20)]:
            kernel[(1,)](x, n)
            if NATIVE is not None:
                most = max(most, kernel._native.remembered())
        finish(None, most=most, left=kernel._native.remembered() if NATIVE is not None else 0)
        """,
        make_bundle(tmp_path / "bundle", simple()),
    )
    assert result.served["most"] == 4096
    assert result.served["left"] < 300
