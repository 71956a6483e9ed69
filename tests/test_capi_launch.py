"""What the C API asks of the driver, against the fake one: what the Python loader asks for the same call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, pointer, scalar, variant
from capi.session import BASE, ODD, Start, X, sessions
from fakecuda import run_script
from loaderscripts import ints, simple

from aot.manifest import ParamInfo


@pytest.fixture
def start(driver: Path, tmp_path: Path) -> Iterator[Start]:
    yield from sessions(driver, tmp_path)


FULL = Draft(
    variants=[
        variant(
            pointer("x", "float16"),
            scalar("stride", "i64"),
            scalar("one", "i32", "1"),
            scalar("eps", "fp32"),
            scalar("scale", "fp64"),
            scalar("n"),
            scalar("flag", "i1"),
            scalar("bias", "bf16"),
            scalar("half", "fp16"),
            constexpr("BLOCK", 128),
            num_warps=8,
            axes={"tile": 4},
        )
    ],
    grid=("cdiv(n, BLOCK) + $tile", "stride // 2", "flag"),
)


def test_a_launch_in_full(start: Start, driver: Path, tmp_path: Path) -> None:
    """Field case B23: the driver gets from C what it gets from the Python loader, to the byte."""
    session = start(FULL)
    given = ["=i:1000", "=i:1", "=f:0.1", "=f:0.1", "=i:5000", "=b:1", "=i:1", "=f:0.333"]
    x = f"=p:float16:{BASE + 4096}"
    assert session("launch", "k", 0, 7, "3,2,1", x, *given) == ["ok"]
    assert session("launch", "k", 0, 7, "-", x, *given) == ["ok"]
    script = """
        kernel = aot.open(PATH).kernel("k").with_stream(7)
        args = (Array("float16"), 1000, 1, 0.1, 0.1, 5000, True, 1, 0.333)
        kernel[(3, 2)](*args)
        kernel(*args)
    """
    theirs = run_script(driver, script, session.path, env={"AOT_NATIVE": "0"})
    assert session.launches == theirs.launches
    assert [launch["grid"] for launch in session.launches] == [[3, 2, 1], [44, 500, 1]]
    x_, stride, eps, scale, n, flag, bias, half, scratch, profile = ints(session.launches[0], *"QqfdiBHHQQ")
    assert (x_, stride, scale, n, flag) == (BASE + 4096, 1000, 0.1, 5000, 1)
    assert (eps, bias, half) == (0.10000000149011612, 0x3F80, 0x3554)
    assert (scratch, profile) == (0, 0)
    assert len(session.named("cuLibraryLoadData")) == 1


def test_a_prepared_call(start: Start) -> None:
    """Packed once; each launch has its own stream and addresses."""
    session = start(FULL)
    given = ["=i:8", "=i:1", "=f:1", "=f:1", "=i:1", "=b:1", "=i:1", "=f:1"]
    assert session("prepare", "k", 0, "-", f"=p:float16:{BASE}", *given) == ["ok", "sm_90", "k_kernel", "1"]
    assert not session.launches
    assert session("close") == ["ok"]
    for stream, address in ((0, None), (7, BASE + 16), (9, BASE + 32)):
        assert session("call", stream, *([] if address is None else [address])) == ["ok"]
    assert [launch["stream"] for launch in session.launches] == [0, 7, 9]
    assert [ints(launch, *"QqfdiBHHQQ")[0] - BASE for launch in session.launches] == [0, 16, 32]
    assert [launch["grid"] for launch in session.launches] == [[5, 4, 1]] * 3
    rest = {tuple(launch["params"][1:]) for launch in session.launches}
    assert len(rest) == 1
    what = "kernel 'k' of target sm_90 on cuda:0 (Fake GPU, capability 9.0)"
    assert session.fault("call", 0, BASE + 8) == (
        f"{what}: x is not aligned to 16 bytes, and the call was prepared with an address that was; "
        "prepare one for such addresses"
    )
    assert session.fault("call", 0, BASE, BASE) == f"{what}: found 2 pointers, wanted 1"
    assert len(session.launches) == 3


def test_the_alignment_of_an_address_decides(start: Start) -> None:
    """Field case B05: the variant that relies on nothing takes every address."""
    session = start(simple())
    assert session("prepare", "k", 0, "1,1,1", ODD, "=i:5")[0] == "ok"
    assert session("call", 0, BASE) == ["ok"]
    assert session("call", 0, BASE + 1) == ["ok"]


def test_defaults_names_and_options(start: Start) -> None:
    draft = Draft(
        variants=[
            variant(
                pointer("x"), scalar("n"), scalar("e", "fp32"), constexpr("B", block), constexpr("OP", "sum")
            )
            for block in (64, 128)
        ],
        params=(
            ParamInfo(name="x", kind="pointer"),
            ParamInfo(name="n", kind="scalar", has_default=True, default=5),
            ParamInfo(name="e", kind="scalar", has_default=True, default=0.5),
            ParamInfo(name="B", kind="constexpr"),
            ParamInfo(name="OP", kind="constexpr", has_default=True, default="sum"),
        ),
        grid=("cdiv(n, B)", "2"),
    )
    session = start(draft)
    for given in (
        [X],
        [X, "=i:130"],
        [X, "n=i:130", "B=i:128"],
        [X, "=_:", "=f:2", "=_:", "=s:sum"],
        ["n=i:1", "x" + X, "num_warps=i:4", "maxnreg=n:", "enable_fp_fusion=b:0"],
    ):
        assert session("launch", "k", 0, 0, "-", *given) == ["ok"]
    assert [launch["grid"][0] for launch in session.launches] == [1, 3, 2, 1, 1]
    assert [ints(launch, *"QifQQ")[1:3] for launch in session.launches] == [
        [5, 0.5],
        [130, 0.5],
        [130, 0.5],
        [5, 2.0],
        [1, 0.5],
    ]
    start_of = "kernel 'k': "
    for given, fault in (
        ([], "x: found no value, wanted a pointer"),
        (["=i:5"], "x: found an integer, wanted a pointer"),
        ([X, X], "n: found a pointer, wanted a number"),
        ([X, "=s:5"], "n: found a string, wanted a number"),
        (
            [X, "=_:", "=_:", X],
            "B: found a pointer, wanted a constexpr: a bool, int, float, string, dtype or None",
        ),
        ([X, "=i:5", "n=i:5"], "n was given twice"),
        ([X, "n=i:5", "=i:5"], "argument 2 has no name and stands behind one that has"),
        ([X, *["=i:1"] * 5], "found 6 positional arguments, wanted at most 5"),
        ([f"=p:?:{BASE}"], "x: found an address alone, and it says no dtype; wanted the dtype too"),
        ([X, "num_warps=f:4"], "num_warps: found a float, wanted an integer"),
        ([X, "num_warps=i:4", "num_warps=i:4"], "num_warps was given twice"),
        (
            [X, "m=i:4"],
            "found argument 'm', wanted one of x, n, e, B, OP or an option (num_warps, num_stages, num_ctas, "
            "maxnreg, enable_fp_fusion)",
        ),
    ):
        assert session.fault("launch", "k", 0, 0, "1,1,1", *given) == start_of + fault
    assert len(session.launches) == 5


def test_a_miss_has_every_reason(start: Start) -> None:
    session = start(
        Draft(variants=[variant(pointer("x", align=1), scalar("n", claim=claim)) for claim in ("1", "16")])
    )
    assert session("launch", "k", 0, 0, "1,1,1", X, "=i:17")[1] == "miss"
    assert session.fault("launch", "k", 0, 0, "1,1,1", ODD, "=i:17", "num_warps=i:4") == (
        "kernel 'k' has no variant for the call (x: float32 not aligned to 16 bytes, n = 17, num_warps = 4) "
        "on cuda:0 (Fake GPU, capability 9.0)\n"
        "B has 2 of this kernel:\n"
        "  1 of sm_90: n = 17 is not 1\n"
        "  1 of sm_90: n = 17 is not a multiple of 16\n"
        "to add it, write what the call has into the kernel's spec and build the bundle again"
    )
    assert session("launch", "k", 0, 0, "1,1,1", X, "=i:16") == ["ok"]


def test_a_bundle_for_another_gpu(start: Start) -> None:
    session = start(simple(), devices="8.0:Fake A100")
    assert session.fault("launch", "k", 0, 0, "1,1,1", X, "=i:16") == (
        "kernel 'k' is not built for this GPU: found cuda:0 (Fake A100, capability 8.0), B has it for sm_90; "
        "build it with: aot build SPEC --target sm_80 -o DIR"
    )


def test_grids(start: Start) -> None:
    """Field case B16: an empty one asks the driver for nothing, one over the limits is refused."""
    session = start(simple())
    for grid in ("0,1,1", "5,0,1", "5,5,0"):
        assert session("launch", "k", 0, 0, grid, X, "=i:16") == ["ok"]
    assert session.calls == []
    largest = 2**31 - 1
    assert session("launch", "k", 0, 0, f"{largest},65535,65535", X, "=i:16") == ["ok"]
    for grid, fault in (
        ("1,65536,1", "found grid y = 65536, wanted at most 65535; put the longest axis on x"),
        ("1,1,65536", "found grid z = 65536, wanted at most 65535; put the longest axis on x"),
        (f"{2**31},1,1", f"found grid x = 2147483648, wanted at most {largest}; let each program do more"),
        ("-1,1,1", "found grid x = -1, wanted 0 or more"),
    ):
        assert session.fault("launch", "k", 0, 0, grid, X, "=i:16") == f"kernel 'k': {fault}"
    assert (
        session.fault("launch", "k", 0, 0, "-", X, "=i:16") == "kernel 'k' has no grid in its spec; pass one"
    )
    assert len(session.launches) == 1
    assert session("prepare", "k", 0, "0,1,1", X, "=i:16")[0] == "ok"
    assert session("call", 0) == ["ok"]
    assert len(session.launches) == 1


def test_the_spec_s_grid_without_a_value(start: Start) -> None:
    session = start(Draft(variants=[variant(scalar("n"), scalar("k"))], grid=("n // k",)))
    assert session.fault("launch", "k", 0, 0, "-", "=i:6", "=i:0") == (
        "kernel 'k': its spec's grid has no value: 'n // k' divides by zero"
    )
    assert session("launch", "k", 0, 0, "-", "=i:6", "=i:2") == ["ok"]
    assert session.launches[0]["grid"] == [3, 1, 1]


@pytest.mark.parametrize(("shared", "asked"), [(48 * 1024, []), (48 * 1024 + 1, [48 * 1024 + 1])])
def test_much_shared_memory_is_asked_for(start: Start, shared: int, asked: list[int]) -> None:
    """Field case B09: once a device."""
    session = start(simple(binary={"shared": shared}), devices="9.0,9.0")
    for device in (0, 1, 0, 1):
        assert session("launch", "k", device, 0, "1,1,1", X, "=i:16") == ["ok"]
    assert [c["value"] for c in session.named("cuKernelSetAttribute")] == asked * 2
    assert [launch["device"] for launch in session.launches] == [0, 1, 0, 1]
    assert len(session.named("cuLibraryLoadData")) == 1
    assert len(session.named("cuCtxPushCurrent")) == len(session.named("cuCtxPopCurrent"))


def test_clusters(start: Start) -> None:
    """Blocks of a program lie along x; more than eight need to be allowed."""
    for ctas in (2, 16):
        session = start(simple(num_ctas=ctas))
        assert session("launch", "k", 0, 0, "5,6,7", X, "=i:16") == ["ok"]
        (launch,) = session.launches
        assert (launch["call"], launch["grid"], launch["cluster"]) == (
            "cuLaunchKernelEx",
            [5 * ctas, 6, 7],
            ctas,
        )
        assert len(session.named("cuKernelSetAttribute")) == (ctas > 8)
        assert "let each program do more" in session.fault(
            "launch", "k", 0, 0, f"{2**31 // ctas},1,1", X, "=i:16"
        )


@pytest.mark.parametrize(("align", "spare"), [(16, 0), (1024, 1024)])
def test_scratch_memory(start: Start, align: int, spare: int) -> None:
    """It is lent in the order of the stream, for every block, at the alignment that the kernel needs."""
    session = start(simple(binary={"scratch": (100, align)}, num_ctas=2))
    assert session("launch", "k", 0, 7, "2,3,1", X, "=i:5") == ["ok"]
    (memory,), (freed,) = session.named("cuMemAllocAsync"), session.named("cuMemFreeAsync")
    assert (memory["bytes"], memory["stream"]) == (100 * 2 * 3 * 2 + spare, 7)
    assert (freed["address"], freed["stream"]) == (memory["address"], 7)
    (launch,) = session.launches
    _, n, scratch, profile = ints(launch, *"QiQQ")
    assert (n, profile) == (5, 0)
    assert scratch % align == 0
    assert 0 <= scratch - memory["address"] <= spare
    order = [c["call"] for c in session.calls if c["call"].startswith(("cuMem", "cuLaunch"))]
    assert order == ["cuMemAllocAsync", "cuLaunchKernelEx", "cuMemFreeAsync"]


@pytest.mark.parametrize(
    ("binary", "fault"),
    [
        (
            {"params": ((0, 8), (8, 8))},
            "found parameters of 8, 8 bytes in the cubin, wanted 8, 4, 8, 8 bytes",
        ),
        (
            {"params": ((0, 8), (8, 4), (16, 8), (16, 8))},
            "found a parameter at offset 16 behind one that ends at 24",
        ),
        (
            {"params": ((0, 8), (8, 4), (16, 8), (2**40, 8))},
            "found a parameter at offset 1099511627776 behind one",
        ),
        ({"params": (), "hidden": 0}, "found parameters of no bytes in the cubin, wanted 8, 4 bytes"),
    ],
)
def test_parameters_that_are_not_the_cubins(start: Start, binary: dict[str, Any], fault: str) -> None:
    session = start(simple(binary=binary))
    assert fault in session.fault("launch", "k", 0, 0, "1,1,1", X, "=i:5")
    assert not session.named("cuLaunchKernel")


def test_many_parameters(start: Start) -> None:
    """More than a launch has on its stack."""
    names = [f"n{i}" for i in range(140)]
    session = start(Draft(variants=[variant(pointer("x"), *(scalar(n, "i64") for n in names))]))
    probe_limit = [X, *(f"=i:{i + 2}" for i in range(140))]
    assert session("launch", "k", 0, 0, "1,1,1", *probe_limit) == ["ok"]
    # The fake driver knows 64 parameters of a cubin.
    assert [int.from_bytes(bytes.fromhex(p), "little") for p in session.launches[0]["params"][1:]] == list(
        range(2, 65)
    )
