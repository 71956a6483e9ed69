"""The whole loader, down to the driver's C functions, against a fake driver library.

Each script runs in a process of its own, with unmodified cuda-bindings and the library of
``tests/fakecuda`` as ``libcuda.so.1``. What a kernel would read is taken from the records in
the cubin, so these tests see the bytes on the far side of the ABI.
"""

from __future__ import annotations

import compileall
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pack_file, pointer, scalar, variant
from fakecuda import Run, compile_driver, run_script

import aot
from aot.manifest import DTypeConst, Missing, ParamInfo

Runner = Callable[..., Run]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("fakecuda"))


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> Runner:
    """Make a bundle of drafts and run a script with it."""

    def runner(script: str, *drafts: Draft, **how: Any) -> Run:
        path = tmp_path / "bundle"
        make_bundle(path, *drafts)
        return run_script(driver, script, path, **how)

    return runner


def simple(**fields: Any) -> Draft:
    """k(x, n): the variants that any x and any n need."""
    binary = fields.pop("binary", {})
    made = [
        variant(pointer("x", align=align), scalar("n", "i32", claim), **fields)
        for align in (16, 1)
        for claim in ("1", "16", "any")
    ]
    return Draft(variants=made, binary=binary)


def ints(launch: dict[str, Any], *types: str) -> list[Any]:
    """The parameters of a recorded launch, by struct codes."""
    pairs = zip(types, launch["params"], strict=True)
    return [struct.unpack(f"<{code}", bytes.fromhex(data))[0] for code, data in pairs]


# Launches.


def test_launch_in_full(run: Runner) -> None:
    """Field case B23: what the kernel reads is what was passed, by the kernel's types."""
    draft = Draft(
        variants=[
            variant(
                pointer("x", "float16"),
                scalar("stride", "i64"),
                scalar("eps", "fp32"),
                scalar("scale", "fp64"),
                scalar("n"),
                scalar("flag", "i1"),
                scalar("bias", "bf16"),
                constexpr("BLOCK", 128),
                num_warps=8,
            )
        ]
    )
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        entry = kernel[(3, 2)](Array("float16"), 2**40, eps=0.1, scale=0.1, n=-7, flag=True, bias=1)
        answer([entry.variant.options.num_warps, entry.binary.registers, "triton" in sys.modules])
        """,
        draft,
    )
    assert result.value == [8, 32, False]
    (launch,) = result.launches
    assert launch["symbol"] == "k_kernel"
    assert (launch["grid"], launch["block"], launch["shared"]) == ([3, 2, 1], 256, 0)
    assert (launch["stream"], launch["device"], launch["cluster"]) == (0, 0, 1)
    x, stride, eps, scale, n, flag, bias, scratch, profile = ints(launch, *"QqfdiBHQQ")
    assert (x, stride, n, flag, bias) == (2**40 + 4096, 2**40, -7, 1, 0x3F80)
    assert eps == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert scale == 0.1
    assert (scratch, profile) == (0, 0)


def test_arguments_equal_to_one_are_not_passed(run: Runner) -> None:
    """Field case B03: with ``c`` compiled in as 1 the cubin has no such parameter, and d keeps its place."""

    def make(claim: str) -> Any:
        return variant(
            pointer("b"), constexpr("A", 2), scalar("c", "i32", claim), scalar("d"), constexpr("E", 3)
        )

    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        one = kernel[(1,)](Array(), 2, 1, 77, 3)
        two = kernel[(1,)](Array(), 2, 2, 77, 3)
        answer([e.variant.args[2].claim for e in (one, two)])
        """,
        Draft(variants=[make("1"), make("any")]),
    )
    assert result.value == ["1", "any"]
    first, second = result.launches
    assert ints(first, *"QiQQ")[1] == 77
    assert ints(second, *"QiiQQ")[1:3] == [2, 77]


def test_alignment_and_values_are_looked_at_on_every_call(run: Runner) -> None:
    """Field cases B05 and C01: sizes by alignments, and each call finds the variant that is right for it."""
    result = run(
        """
        bundle = aot.open(PATH)
        kernel = bundle.kernel("k")
        found = []
        for n in (1, 2, 15, 16, 17, 31, 32, 1000, 1024):
            for offset in (4096, 4100, 4104, 4112):
                entry = kernel[(1,)](Array(offset=offset), n)
                found.append([n, offset, entry.variant.args[0].align, entry.variant.args[1].claim])
        answer([found, bundle.stats()])
        """,
        simple(),
    )
    found, stats = result.value
    for n, offset, align, claim in found:
        assert align == (16 if offset % 16 == 0 else 1)
        assert claim == ("1" if n == 1 else "16" if n % 16 == 0 else "any")
    assert stats == {"hits": 36, "misses": 0, "launches": 36, "loads": 6}
    assert len(result.launches) == 36
    assert len(result.named("cuLibraryLoadData")) == 6


def test_a_remembered_choice_serves_equal_calls_only(run: Runner) -> None:
    """Calls that differ in alignment, a claim, a type or a constant are chosen for anew, and right."""
    drafts = Draft(
        variants=[
            variant(pointer("x", align=align), scalar("n", "i32", claim), constexpr("FLAG", flag))
            for flag in (1, True)
            for align in (16, 1)
            for claim in ("1", "16", "any")
        ]
    )
    value = run(
        """
        kernel = aot.open(PATH).kernel("k")
        seen = []
        for _ in range(2):
            for offset in (4096, 4100):
                for n in (1, True, 16, 7):
                    for flag in (1, True):
                        args = kernel[(1,)](Array(offset=offset), n, FLAG=flag).variant.args
                        seen.append([args[0].align, args[1].claim, type(args[2].value).__name__])
        refused = error(kernel[(1,)], Array(), 1.0, FLAG=1)
        answer([seen, refused[0], "n = 1.0 is a float" in refused[1]])
        """,
        drafts,
    ).value
    wanted = [
        [align, claim, flag]
        for _ in range(2)
        for align in (16, 1)
        for claim in ("1", "1", "16", "any")
        for flag in ("int", "bool")
    ]
    assert value == [wanted, "KernelMiss", True]


def test_a_value_that_does_not_fit_finds_no_kernel(run: Runner) -> None:
    """Field case B06: around 2**31, never truncated."""
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        kernel[(1,)](Array(), 2**31 - 1)
        answer([error(kernel[(1,)], Array(), n) for n in (2**31, 2**31 + 1, -2**31 - 1)])
        """,
        simple(),
    )
    assert [kind for kind, _ in result.value] == ["KernelMiss"] * 3
    assert "  6 of sm_90: n = 2147483648 does not fit int32\n" in result.value[0][1]
    assert len(result.launches) == 1


def test_variants_that_differ_only_in_options_or_types_of_constants(run: Runner) -> None:
    """Field case B15: 1, 1.0 and True, and num_warps, are different kernels; the right one runs."""
    made = [
        variant(constexpr("V", value), scalar("n"), num_warps=warps)
        for value in (1, 1.0, True)
        for warps in (1, 2)
    ]
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        chosen = [kernel[(1,)](v, n=5, num_warps=w).variant for v in (True, 1.0, 1) for w in (2, 1)]
        answer([[repr(c.args[0].value), c.options.num_warps] for c in chosen])
        """,
        Draft(variants=made),
    )
    assert result.value == [[v, w] for v in ("True", "1.0", "1") for w in (2, 1)]
    assert [launch["block"] for launch in result.launches] == [64, 32] * 3
    assert len(result.named("cuLibraryLoadData")) == 6


def test_two_kernels_of_one_name_in_their_source(run: Runner) -> None:
    """Field case B15: cubins are told apart by their contents, not by their symbols."""
    drafts = [
        Draft(
            name=name,
            variants=[variant(scalar("n"), kernel=name, num_warps=warps)],
            binary={"symbol": "same"},
        )
        for name, warps in (("a", 1), ("b", 2))
    ]
    result = run(
        """
        bundle = aot.open(PATH)
        for name in ("a", "b", "a"):
            bundle.kernel(name)[(1,)](5)
        answer(bundle.stats()["loads"])
        """,
        *drafts,
    )
    assert result.value == 2
    assert [(x["symbol"], x["block"]) for x in result.launches] == [("same", 32), ("same", 64), ("same", 32)]


def test_identical_cubins_are_loaded_once(run: Runner) -> None:
    draft = simple(binary={"salt": b"same"})
    result = run(
        """
        for _ in range(2):
            bundle = aot.open(PATH)
            for n in (2, 16):
                for offset in (4096, 4100):
                    bundle.kernel("k")[(1,)](Array(offset=offset), n)
            bundle.close()
        answer(bundle.stats()["loads"])
        """,
        draft,
    )
    assert result.value == 0
    assert len(result.named("cuLibraryLoadData")) == 1
    assert len(result.launches) == 8


def test_bool_tensors(run: Runner) -> None:
    """Field case B20: torch's bool is a dtype of its own, not int8 or uint8."""
    draft = Draft(variants=[variant(pointer("x", "bool"), scalar("n"))])
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        kernel[(1,)](Array("bool"), 3)
        answer([error(kernel[(1,)], Array(d), 3)[1].splitlines()[2] for d in ("int8", "uint8")])
        """,
        draft,
    )
    assert result.value == [f"  1 of sm_90: x is bool, the call has {d}" for d in ("int8", "uint8")]


def test_shared_memory_above_48_kib(run: Runner) -> None:
    """The opt-in is asked for once a device; the fake driver refuses a launch without it."""
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        for device in (0, 1, 0, 1):
            kernel[(1,)](Array(device=device), 16)
        """,
        simple(binary={"shared": 100_000}),
        devices="9.0,9.0",
    )
    asked = result.named("cuKernelSetAttribute")
    assert [(a["attribute"], a["value"], a["device"]) for a in asked] == [(8, 100_000, 0), (8, 100_000, 1)]
    assert [(x["shared"], x["device"]) for x in result.launches] == [(100_000, d) for d in (0, 1, 0, 1)]
    assert len(result.named("cuLibraryLoadData")) == 1


def test_more_shared_memory_than_the_device_has(run: Runner) -> None:
    """Field case B08: an sm_80 cubin on capability 8.6."""
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        answer(error(kernel[(1,)], Array(), 16))
        """,
        simple(target="sm_80", binary={"shared": 120_000}),
        devices="8.6",
    )
    assert result.value[0] == "KernelMiss"
    assert "it needs 120000 bytes of shared memory, the device allows 101376" in result.value[1]
    assert result.launches == []


def test_clusters(run: Runner) -> None:
    """A program of several blocks: they lie along x and form a cluster, as in Triton's launcher."""
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        kernel[(5, 2)](Array(), 16)
        kernel[(2**30 - 1,)](Array(), 16)
        answer(error(kernel[(2**30,)], Array(), 16))
        """,
        simple(num_ctas=2),
    )
    first, second = result.launches
    assert (first["call"], first["grid"], first["cluster"]) == ("cuLaunchKernelEx", [10, 2, 1], 2)
    assert second["grid"] == [2**31 - 2, 1, 1]
    assert result.value == [
        "LaunchError",
        "kernel 'k': found grid x = 1073741824, wanted at most 1073741823; let each program do more",
    ]


def test_large_clusters_are_asked_for(run: Runner) -> None:
    result = run("aot.open(PATH).kernel('k')[(1,)](Array(), 16)", simple(num_ctas=16))
    assert [(a["attribute"], a["value"]) for a in result.named("cuKernelSetAttribute")] == [(14, 1)]
    assert result.launches[0]["cluster"] == 16


def test_global_scratch(run: Runner) -> None:
    """Each program gets its part, on the launch's stream, and the memory goes back after the launch."""
    result = run(
        "aot.open(PATH).kernel('k').with_stream(7)[(3, 2)](Array(), 5)",
        simple(num_ctas=2, binary={"scratch": (100, 1024)}),
    )
    (allocated,) = result.named("cuMemAllocAsync")
    (freed,) = result.named("cuMemFreeAsync")
    assert (allocated["bytes"], allocated["stream"]) == (100 * 6 * 2 + 1024, 7)
    assert (freed["address"], freed["stream"]) == (allocated["address"], 7)
    scratch, profile = ints(result.launches[0], *"QiQQ")[2:]
    assert scratch % 1024 == 0
    assert allocated["address"] <= scratch < allocated["address"] + 1024
    assert profile == 0
    calls = [c["call"] for c in result.calls]
    assert calls.index("cuLaunchKernelEx") < calls.index("cuMemFreeAsync")


@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_hidden_pointers_by_version_of_the_compiler(run: Runner, hidden: int) -> None:
    """Field case B01: their number is the cubin's."""
    result = run("aot.open(PATH).kernel('k')[(1,)](Array(), 5)", simple(binary={"hidden": hidden}))
    assert len(result.launches[0]["params"]) == 2 + hidden


# Streams, devices, threads, processes.


def test_streams(run: Runner) -> None:
    """Field case C12: the stream that was asked for, and torch's current stream for torch's tensors."""
    result = run(
        """
        import torch
        kernel = aot.open(PATH).kernel("k")
        kernel.with_stream(11)[(1,)](Array(), 16)
        kernel.with_stream(types.SimpleNamespace(cuda_stream=12))[(1,)](Array(), 16)
        kernel.with_stream(types.SimpleNamespace(__cuda_stream__=lambda: (0, 13)))[(1,)](Array(), 16)

        class OnGpu(torch.Tensor):
            # This torch has no CUDA; where the tensor lies is all that the loader asks of it.
            device = property(lambda self: torch.device("cuda", 1))
            def data_ptr(self):
                return (2 << 40) + 4096

        torch._C._cuda_getCurrentRawStream = lambda index: 20 + index
        kernel[(1,)](torch.empty(4).as_subclass(OnGpu), 16)
        kernel.with_stream(14)[(1,)](torch.empty(4).as_subclass(OnGpu), 16)
        kernel[(1,)](Array(), 16)
        answer(error(kernel.with_stream, "main"))
        """,
        simple(),
        devices="9.0,9.0",
    )
    wanted = [(11, 0), (12, 0), (13, 0), (21, 1), (14, 1), (0, 0)]
    assert [(x["stream"], x["device"]) for x in result.launches] == wanted
    assert result.value == [
        "UsageError",
        "found stream 'main', wanted a handle, torch's stream or a CUDA Python stream",
    ]


def test_devices_and_contexts(run: Runner) -> None:
    """The tensor's device decides; the context that was current is current afterwards."""
    result = run(
        """
        from aot.loader.driver import get_driver
        kernel = aot.open(PATH).kernel("k")
        for device in (1, 0, 1):
            kernel[(1,)](Array(device=device), 16)
        driver = get_driver()
        before = int(driver._cu.cuCtxGetCurrent()[1])
        with driver.current(driver.device(1)):
            kernel[(1,)](Array(device=0), 16)
            kernel[(1,)](Array(device=1), 16)
            inside = int(driver._cu.cuCtxGetCurrent()[1]) == driver.device(1).context
        answer([before, inside, int(driver._cu.cuCtxGetCurrent()[1])])
        """,
        simple(),
        devices="9.0,9.0",
    )
    assert result.value == [0, True, 0]
    assert [x["device"] for x in result.launches] == [1, 0, 1, 0, 1]
    assert len(result.named("cuLibraryLoadData")) == 1


def test_device_of_an_array_that_does_not_say(run: Runner) -> None:
    """__cuda_array_interface__ names no device: the driver is asked whose memory it is."""
    result = run(
        """
        class Foreign:
            def __init__(self, typestr, address):
                self.__cuda_array_interface__ = {"typestr": typestr, "data": (address, False), "shape": (1,)}
        kernel = aot.open(PATH).kernel("k")
        kernel[(1,)](Foreign("<f4", (2 << 40) + 16), 16)
        answer([error(kernel[(1,)], Foreign(t, 1 << 40), 16)[1] for t in ("<f2", ">f4", "|V2")])
        """,
        simple(),
        devices="9.0,9.0",
    )
    assert [x["device"] for x in result.launches] == [1]
    assert "x is float32, the call has float16" in result.value[0]
    assert result.value[1:] == [
        f"kernel 'k': x: found elements of type '{t}', wanted little-endian bool, int, uint, float or complex"
        for t in (">f4", "|V2")
    ]


def test_many_threads_at_the_first_launch(run: Runner) -> None:
    """Field case C08: threads that never touched CUDA; one load each, and every launch right."""
    result = run(
        """
        import threading
        bundle = aot.open(PATH)
        kernel = bundle.kernel("k")
        start = threading.Barrier(16)
        def work(i):
            start.wait()
            for j in range(10):
                kernel[(1,)](Array(), 100 * i + j + 3)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        answer(bundle.stats())
        """,
        Draft(variants=[variant(pointer("x"), scalar("n"))]),
    )
    assert result.value == {"hits": 160, "misses": 0, "launches": 160, "loads": 1}
    assert len(result.named("cuLibraryLoadData")) == 1
    assert len(result.named("cuInit")) == 1
    values = sorted(ints(x, *"QiQQ")[1] for x in result.launches)
    assert values == sorted(100 * i + j + 3 for i in range(16) for j in range(10))


def test_fork(run: Runner) -> None:
    """Field case C09: fork before the first launch works; after it the child gets a clear error."""
    result = run(
        """
        def child(function):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(write, json.dumps(function()).encode())
                os._exit(0)
            os.waitpid(pid, 0)
            return pid, json.loads(os.read(read, 10000))

        kernel = aot.open(PATH).kernel("k")
        call = lambda: error(kernel[(1,)], Array(), 16)
        before = child(call)[1]
        kernel[(1,)](Array(), 16)
        pid, after = child(call)
        parent = call()
        message = after[1].replace(str(pid), "CHILD").replace(str(os.getpid()), "PARENT")
        answer([before, parent, after[0], message])
        """,
        simple(),
    )
    assert result.value == [
        None,
        None,
        "DriverError",
        "this process (CHILD) was forked from process PARENT after that one used CUDA, and CUDA does not "
        "work in such a child; start workers with the spawn or forkserver method, "
        "or fork before the first launch",
    ]


def test_first_load_in_a_capture(run: Runner) -> None:
    """Field case C10: refused before the driver is asked to load; what is loaded launches."""
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        captured = kernel.with_stream(9)
        first = error(captured[(1,)], Array(), 16)
        kernel[(1,)](Array(), 16)
        answer([first, error(captured[(1,)], Array(), 16)])
        """,
        simple(),
        capturing="9",
    )
    assert result.value == [
        [
            "LaunchError",
            "kernel 'k' of target sm_90 is not loaded yet, and the stream is being captured; "
            "call it once before the capture begins",
        ],
        None,
    ]
    assert [x["stream"] for x in result.launches] == [0, 9]


# Grids.


def test_grids(run: Runner) -> None:
    """Field cases B16 to B18: tuple, list or callable; an empty one is a no-op; limits are checked."""
    result = run(
        """
        bundle = aot.open(PATH)
        kernel = bundle.kernel("k")
        call = lambda grid: error(kernel[grid], Array(), 16)
        fine = [call(g) for g in ((5,), [5, 6], (5, 6, 7), (2**31 - 1, 65535, 65535), lambda meta: (9,))]
        empty = [kernel[g](Array(), 16) for g in ((0,), [3, 0], (2, 2, 0), lambda meta: (0,))]
        wrong = [call(g)[1] for g in (
            (1, 65536), (1, 1, 65536), (2**31,), (-1,), (), (1, 1, 1, 1), 5, (2.0,), lambda meta: 4, "1")]
        answer([fine, empty, wrong, bundle.stats()["launches"]])
        """,
        simple(),
    )
    fine, empty, wrong, launches = result.value
    assert fine == [None] * 5
    assert empty == [None] * 4
    limit = "found grid {} = {}, wanted at most {}; {}"
    wanted = "wanted a tuple or list of 1 to 3 integers, such as (n,)"
    assert wrong == [
        f"kernel 'k': {fault}"
        for fault in (
            limit.format("y", 65536, 65535, "put the longest axis on x"),
            limit.format("z", 65536, 65535, "put the longest axis on x"),
            limit.format("x", 2**31, 2**31 - 1, "let each program do more"),
            "found grid x = -1, wanted 0 or more",
            "found a grid of 0 axes, wanted 1 to 3",
            "found a grid of 4 axes, wanted 1 to 3",
            f"found grid 5, {wanted}",
            "found grid x = 2.0, wanted an integer",
            f"found grid 4, {wanted}",
            f"found grid '1', {wanted}",
        )
    ]
    assert launches == 5
    assert [x["grid"] for x in result.launches] == [
        [5, 1, 1],
        [5, 6, 1],
        [5, 6, 7],
        [2**31 - 1, 65535, 65535],
        [9, 1, 1],
    ]


def test_an_empty_grid_asks_the_driver_for_nothing(run: Runner) -> None:
    """Field case B16."""
    result = run("answer(aot.open(PATH).kernel('k')[(0,)](Array(), 16))", simple())
    assert result.calls == []


def test_what_a_grid_callable_gets(run: Runner) -> None:
    """Every argument by name as the JIT gives them, with the constexprs that the variant decided."""
    draft = Draft(
        variants=[variant(pointer("x"), scalar("n"), constexpr("BLOCK", 64), constexpr("OP", "sum"))],
        params=(
            ParamInfo(name="x", kind="pointer"),
            ParamInfo(name="n", kind="scalar", has_default=True, default=5),
            ParamInfo(name="BLOCK", kind="constexpr"),
            ParamInfo(name="OP", kind="constexpr", has_default=True, default="sum"),
        ),
        grid=("cdiv(n, BLOCK)", "2"),
    )
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        seen = {}
        x = Array()
        kernel[lambda meta: (seen.update(meta), (1,))[1]](x, 130)
        same = seen.pop("x") is x
        kernel(x)
        kernel(x, 130)
        answer([same, seen, error(kernel, x, OP="prod")[1].splitlines()[2]])
        """,
        draft,
    )
    assert result.value == [
        True,
        {"n": 130, "BLOCK": 64, "OP": "sum"},
        "  1 of sm_90: OP is 'sum', the call has 'prod'",
    ]
    assert [x["grid"] for x in result.launches] == [[1, 1, 1], [1, 2, 1], [3, 2, 1]]


def test_grid_of_the_spec(run: Runner) -> None:
    draft = Draft(
        variants=[variant(scalar("n"), scalar("k"), axes={"block": 32}, bounds=[("n", 1000)])],
        grid=("cdiv(n, $block) * k",),
    )
    result = run(
        """
        bundle = aot.open(PATH)
        kernel = bundle.kernel("k")
        kernel(100, 3)
        answer([kernel(100, 0), error(kernel, 1000, 2**31 - 1)[1]])
        """,
        draft,
    )
    assert [x["grid"] for x in result.launches] == [[12, 1, 1]]
    assert result.value == [
        None,
        "kernel 'k': found grid x = 68719476704, wanted at most 2147483647; let each program do more",
    ]


def test_no_grid_at_all(run: Runner) -> None:
    result = run("answer(error(aot.open(PATH).kernel('k'), Array(), 16))", simple())
    assert result.value == [
        "LaunchError",
        "kernel 'k' has no grid in its spec; call bundle.kernel('k')[grid](…)",
    ]


# Wrong calls.


def test_arguments_that_are_wrong(run: Runner) -> None:
    """Each names the kernel and the parameter; the driver is not asked."""
    draft = Draft(variants=[variant(pointer("x_ptr"), scalar("n_cols"), constexpr("BLOCK", 8))])
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")[(1,)]
        x = Array()
        class Cpu:
            type, index = "cpu", None
            __str__ = lambda self: "cpu"
        cpu = Array()
        cpu.device = Cpu()
        answer([error(kernel, *a, **k)[1] for a, k in [
            ((x, 5, 8, 9), {}),
            ((x, 5), {"x_ptr": x}),
            ((x, 5), {"BLCK": 8}),
            ((x, 5), {"num_warp": 8}),
            ((x,), {}),
            ((), {"n_cols": 5}),
            ((None, 5), {}),
            ((4096, 5), {}),
            (("x", 5), {}),
            ((cpu, 5), {}),
            ((x, x), {}),
            ((x, "5"), {}),
            ((x, 1j), {}),
            ((x, 5, [8]), {}),
            ((x, 5), {"num_warps": "four"}),
        ]])
        """,
        draft,
    )
    tensor = "wanted a CUDA tensor (an object with data_ptr() and dtype, or with __cuda_array_interface__)"
    names = "x_ptr, n_cols, BLOCK"
    options = "num_warps, num_stages, num_ctas, maxnreg, enable_fp_fusion"
    assert result.value == [
        f"kernel 'k': found 4 positional arguments, wanted at most 3 ({names})",
        "kernel 'k': x_ptr was given twice, by position and by name",
        f"kernel 'k': found argument 'BLCK', wanted one of {names} or an option ({options}); "
        "did you mean 'BLOCK'?",
        f"kernel 'k': found argument 'num_warp', wanted one of {names} or an option ({options}); "
        "did you mean 'num_warps'?",
        "kernel 'k': n_cols: found no value, wanted a number",
        "kernel 'k': x_ptr: found no value, wanted a tensor",
        f"kernel 'k': x_ptr: found None, {tensor}",
        f"kernel 'k': x_ptr: found an int, and an address alone says no dtype, {tensor}",
        f"kernel 'k': x_ptr: found str, {tensor}",
        "kernel 'k': x_ptr: found a tensor on cpu, wanted a CUDA tensor",
        "kernel 'k': n_cols: found an Array, wanted a number",
        "kernel 'k': n_cols: found a str, wanted a number",
        "kernel 'k': n_cols: found a complex, wanted a number",
        "kernel 'k': BLOCK: found a list, wanted a constexpr: a bool, int, float, str, dtype or None",
        "kernel 'k': num_warps: found a str, wanted an integer",
    ]
    assert result.calls == []


def test_tensors_of_torch_that_are_wrong(run: Runner) -> None:
    """CPU and meta tensors, and views whose conj or neg bit a kernel would not see."""
    draft = Draft(variants=[variant(pointer("x", "complex64"), scalar("n"))])
    result = run(
        """
        import torch
        kernel = aot.open(PATH).kernel("k")[(1,)]
        class OnGpu(torch.Tensor):
            device = property(lambda self: torch.device("cuda", 0))
        x = torch.zeros(4, dtype=torch.complex64).as_subclass(OnGpu)
        answer([error(kernel, t, 5)[1] for t in (
            torch.zeros(4), torch.empty(4, device="meta"), x.conj(), x.conj().imag)])
        """,
        draft,
    )
    stored = "and a kernel sees the stored values"
    assert result.value == [
        "kernel 'k': x: found a tensor on cpu, wanted a CUDA tensor",
        "kernel 'k': x: found a tensor on meta, wanted a CUDA tensor",
        f"kernel 'k': x: found a tensor with its conj bit set, {stored}; wanted x.resolve_conj()",
        f"kernel 'k': x: found a tensor with its neg bit set, {stored}; wanted x.resolve_neg()",
    ]


def test_tensors_on_two_devices(run: Runner) -> None:
    draft = Draft(variants=[variant(pointer("x"), pointer("y"))])
    result = run(
        "answer(error(aot.open(PATH).kernel('k')[(1,)], Array(), Array(device=1)))", draft, devices="9.0,9.0"
    )
    assert result.value == [
        "LaunchError",
        "kernel 'k': x is on cuda:0 and y on cuda:1, wanted all tensors on one device",
    ]
    assert result.calls == []


def test_numbers_of_other_libraries(run: Runner) -> None:
    """numpy's and torch's scalars are what they stand for; an int parameter takes no float."""
    draft = Draft(variants=[variant(scalar("n", "i64"), scalar("eps", "fp32"), constexpr("BLOCK", 8))])
    result = run(
        """
        import numpy as np, torch
        kernel = aot.open(PATH).kernel("k")[(1,)]
        kernel(np.int32(7), np.float16(0.5), np.int64(8))
        kernel(torch.tensor(8), torch.tensor(0.25), 8)
        kernel(np.bool_(True), np.float64(2), BLOCK=8)
        kernel(torch.tensor(True), torch.tensor(3), BLOCK=8)
        answer([error(kernel, n, 1.0)[1].splitlines()[2] for n in (np.float32(2), torch.tensor(2.0), 2.0)])
        """,
        draft,
    )
    assert [ints(x, *"qfQQ")[:2] for x in result.launches] == [[7, 0.5], [8, 0.25], [1, 2.0], [1, 3.0]]
    assert result.value == ["  1 of sm_90: n = 2.0 is a float, n is int64"] * 3


def test_dtypes_as_constexprs(run: Runner) -> None:
    """A dtype of torch or Triton matches by name; the loader imports neither."""
    names = ("float16", "bool", "float8_e4m3fn")
    draft = Draft(variants=[variant(constexpr("T", DTypeConst(name))) for name in names])
    result = run(
        """
        import torch, triton.language as tl
        kernel = aot.open(PATH).kernel("k")[(1,)]
        chosen = [kernel(t).variant.args[0].value.dtype for t in (
            torch.float16, tl.float16, tl.int1, torch.float8_e4m3fn, tl.float8e4nv, tl.constexpr(tl.float16))]
        answer([chosen, error(kernel, torch.int8)[1].splitlines()[2]])
        """,
        draft,
    )
    assert result.value == [
        ["float16", "float16", "bool", "float8_e4m3fn", "float8_e4m3fn", "float16"],
        "  1 of sm_90: T is float16, the call has int8",
    ]


# Misses.


def test_the_message_of_a_miss(run: Runner) -> None:
    draft = Draft(
        name="rows",
        variants=[
            variant(
                pointer("x", dtype),
                scalar("n_cols", "i32", "16"),
                constexpr("BLOCK", block),
                kernel="rows",
                target=target,
                axes={"dtype": dtype, "n_cols": block},
                bounds=[("n_cols", block)],
            )
            for target in ("sm_80", "sm_90")
            for dtype in ("float16", "float32")
            for block in (1024, 4096)
        ],
    )
    result = run(
        """
        bundle = aot.open(PATH)
        kernel = bundle.kernel("rows")[(1,)]
        message = error(kernel, Array(offset=8), 5000, num_warps=8)[1].replace(PATH, "BUNDLE")
        try:
            kernel(Array(), 17, BLOCK=4096)
        except KernelMiss as miss:
            answer([message, miss.kernel, miss.reasons, bundle.stats()])
        """,
        draft,
    )
    message, kernel, reasons, stats = result.value
    assert message.splitlines() == [
        "kernel 'rows' has no variant for the call (x: float32 not aligned to 16 bytes, n_cols = 5000, "
        "num_warps = 8) on cuda:0 (Fake GPU, capability 9.0)",
        "BUNDLE has 8 of this kernel:",
        "  4 of sm_80: sm_80 runs on capability 8.x only, the device is 9.0",
        "  2 of sm_90: x is float16, the call has float32",
        "  2 of sm_90: x is not aligned to 16 bytes",
        "to add it, write this into the kernel's spec and build again:",
        "  kernel: rows",
        "  axes:",
        "    n_cols: {buckets: [1024, 4096, any]}",
        "  params:",
        "    x: {pointer: $dtype, align: [16, 1]}",
        "    n_cols: {int: int32, specialize: [16, any]}",
        "  launch:",
        "    num_warps: 8",
    ]
    assert kernel == "rows"
    assert reasons == [
        "4 of sm_80: sm_80 runs on capability 8.x only, the device is 9.0",
        "2 of sm_90: x is float16, the call has float32",
        "2 of sm_90: n_cols = 17 is not a multiple of 16",
    ]
    assert stats == {"hits": 0, "misses": 2, "launches": 0, "loads": 0}
    assert result.launches == []


def test_a_miss_with_very_many_reasons(run: Runner) -> None:
    draft = Draft(variants=[variant(constexpr("BLOCK", 2**i)) for i in range(30)])
    result = run("answer(error(aot.open(PATH).kernel('k')[(1,)], BLOCK=3)[1])", draft)
    lines = result.value.splitlines()
    assert len(lines) == 2 + 20 + 1 + 4
    assert lines[22] == "  … and 10 other reasons"
    assert lines[-3:] == ["  kernel: k", "  params:", "    BLOCK: {constexpr: 3}"]


def test_a_miss_names_variants_that_failed_to_compile(driver: Path, tmp_path: Path) -> None:
    """Field case B12: what ``--keep-going`` left out is said where it is missed."""
    missing = Missing(kernel="k", target="sm_90", axes={"BLOCK": 2}, error="out of registers\nmore")
    path = make_bundle(tmp_path / "b", Draft(variants=[variant(constexpr("BLOCK", 1))]), missing=(missing,))
    result = run_script(driver, "answer(error(aot.open(PATH).kernel('k')[(1,)], BLOCK=2)[1])", path)
    assert result.value.splitlines()[3] == (
        "1 more failed to compile when the bundle was built; the first: out of registers"
    )


def test_the_wrong_gpu(run: Runner) -> None:
    """Field case B09: device, capability, the targets there are, and the command."""
    result = run(
        "answer([e.replace(PATH, 'BUNDLE') for e in error(aot.open(PATH).kernel('k')[(1,)], Array(), 16)])",
        simple(target="sm_80"),
        devices="9.0:NVIDIA H200",
    )
    assert result.value == [
        "KernelMiss",
        "kernel 'k' is not built for this GPU: found cuda:0 (NVIDIA H200, capability 9.0), "
        "BUNDLE has it for sm_80; build it with: aot build SPEC --target sm_90 -o DIR",
    ]


@pytest.mark.parametrize(("capability", "works"), [("9.0", True), ("10.0", False), ("12.0", False)])
def test_architecture_specific_targets(run: Runner, capability: str, works: bool) -> None:
    """Field case B10."""
    result = run(
        "answer(error(aot.open(PATH).kernel('k')[(1,)], Array(), 16))",
        simple(target="sm_90a"),
        devices=capability,
    )
    assert (result.value is None) == works


# Faults: one error each, and the process goes on.


@pytest.mark.parametrize(
    ("fail", "fault"),
    [
        (
            "cuLibraryLoadData:200@1",
            "cuLibraryLoadData failed with CUDA_ERROR_INVALID_IMAGE (200) for kernel 'k' of target sm_90; "
            "the cubin is for sm_90 and was made by ptxas 13.4, the driver supports CUDA 12.2; "
            "build for this device's capability, or upgrade the driver",
        ),
        (
            "cuLibraryLoadData:2@1",
            "cuLibraryLoadData failed with CUDA_ERROR_OUT_OF_MEMORY (2) for kernel 'k' of target sm_90; "
            "the GPU's memory is full: free some, or use a device with more",
        ),
        (
            "cuLibraryGetKernel:500@1",
            "cuLibraryGetKernel failed with CUDA_ERROR_NOT_FOUND (500) for kernel 'k' of target sm_90 "
            "(k_kernel); the cubin has no such symbol: build the bundle again",
        ),
        (
            "cuLaunchKernel:701@1",
            "cuLaunchKernel failed with CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701) for kernel 'k' of target "
            "sm_90 on cuda:0 (Fake GPU, capability 9.0); the kernel needs more registers or shared memory "
            "than the device has left for one block",
        ),
        (
            "cuCtxPushCurrent:201@1",
            "cuCtxPushCurrent failed with CUDA_ERROR_INVALID_CONTEXT (201) for cuda:0 "
            "(Fake GPU, capability 9.0)",
        ),
        (
            "cuInit:100@1",
            "cuInit failed with CUDA_ERROR_NO_DEVICE (100); no GPU is visible: look at nvidia-smi "
            "and CUDA_VISIBLE_DEVICES",
        ),
        (
            "cuDevicePrimaryCtxRetain:2@1",
            "cuDevicePrimaryCtxRetain failed with CUDA_ERROR_OUT_OF_MEMORY (2) for "
            "cuda:0; the GPU's memory is full: free some, or use a device with more",
        ),
    ],
    ids=lambda text: text.split(":")[0] if "@" in text else "",
)
def test_driver_errors(run: Runner, fail: str, fault: str) -> None:
    """Field cases B11 and C07: call, CUDA error, kernel, and what to do; the next call is right."""
    result = run(
        """
        from aot.loader.driver import get_driver
        kernel = aot.open(PATH).kernel("k")[(1,)]
        first, second = error(kernel, Array(), 16), error(kernel, Array(), 16)
        cu = get_driver()._cu
        answer([first, second, int(cu.cuCtxGetCurrent()[1])])
        """,
        simple(),
        fail=fail,
        driver_version="12020",
    )
    assert result.value == [["DriverError", fault], None, 0]
    assert len(result.launches) == 1


def test_shared_memory_that_the_driver_refuses(run: Runner) -> None:
    result = run(
        "answer(error(aot.open(PATH).kernel('k')[(1,)], Array(), 16))",
        simple(binary={"shared": 100_000}),
        fail="cuKernelSetAttribute:1",
    )
    assert result.value == [
        "DriverError",
        "cuKernelSetAttribute failed with CUDA_ERROR_INVALID_VALUE (1) for kernel 'k' of target sm_90 on "
        "cuda:0 (Fake GPU, capability 9.0); wanted CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 100000, "
        "the device allows 232448 bytes of shared memory",
    ]
    assert result.launches == []


def test_a_device_that_is_not_there(run: Runner) -> None:
    result = run("answer(error(aot.open(PATH).kernel('k')[(1,)], Array(device=3), 16))", simple())
    assert result.value == [
        "DriverError",
        "found device cuda:3, wanted one of the 1 that the driver shows; look at CUDA_VISIBLE_DEVICES",
    ]


def test_no_driver_library(tmp_path: Path) -> None:
    """Field case B14: a library that cannot be loaded reads as no driver, whatever is installed."""
    path = make_bundle(tmp_path / "bundle", simple())
    (tmp_path / "libcuda.so.1").write_text("no library")
    result = run_script(tmp_path, "answer(error(aot.open(PATH).kernel('k')[(1,)], Array(), 16))", path)
    kind, message = result.value
    assert kind == "DriverError"
    assert message.startswith("found no CUDA driver (")
    assert message.endswith(
        "); wanted libcuda.so.1, which comes with the NVIDIA driver. In a container, start it with GPU access"
    )


def test_a_damaged_cubin_is_never_loaded(driver: Path, tmp_path: Path) -> None:
    """Field cases C04 and C16: found at the first use, named; other kernels go on."""
    path = make_bundle(
        tmp_path / "b",
        Draft(variants=[variant(scalar("n"))]),
        Draft(name="other", variants=[variant(scalar("n"), kernel="other", num_warps=2)]),
        codec="none",
    )
    data = bytearray(pack_file(path).read_bytes())
    data[16 + 40] ^= 1
    pack_file(path).write_bytes(data)
    result = run_script(
        driver,
        """
        bundle = aot.open(PATH)
        answer([error(bundle.kernel(name)[(1,)], 5) for name in ("k", "other", "k", "other")])
        """,
        path,
    )
    damaged = [e for e in result.value if e is not None]
    assert [kind for kind, _ in damaged] == ["BundleError"] * 2
    assert all("; the bundle is damaged, build it again" in text for _, text in damaged)
    assert len(result.launches) == 2
    assert len(result.named("cuLibraryLoadData")) == 1


def test_a_cubin_with_other_parameters_than_its_entry(driver: Path, tmp_path: Path) -> None:
    """Field case B06: an int64 in an int32's place is caught before a launch."""

    def widen(entries: list[Any]) -> None:
        entries[0]["variant"]["args"][0][2] = "i64"

    path = make_bundle(tmp_path / "b", Draft(variants=[variant(scalar("n"))]), edit_entries=widen)
    result = run_script(driver, "answer(error(aot.open(PATH).kernel('k')[(1,)], 5))", path)
    assert result.value == [
        "BundleError",
        f"{path}: kernel 'k', k_kernel of sm_90: found parameters of 4, 8, 8 bytes in the cubin, "
        "wanted 8, 8, 8; the bundle is inconsistent, build it again",
    ]
    assert result.launches == []


# Bundles: which, and for how long.


def test_unknown_kernels_and_closed_bundles(run: Runner) -> None:
    result = run(
        """
        with aot.open(PATH) as bundle:
            kernel = bundle.kernel("k")
            kernel[(1,)](Array(), 16)
            unknown = error(bundle.kernel, "kk")
        closed = error(kernel[(1,)], Array(), 16)
        answer([x[1].replace(PATH, "BUNDLE") for x in (unknown, closed)] + [bundle.kernels, repr(kernel)])
        """,
        simple(),
    )
    assert result.value == [
        "BUNDLE: found no kernel 'kk', wanted one of k; did you mean 'k'?",
        "kernel 'k': its bundle BUNDLE was closed",
        ["k"],
        "<aot.Kernel k(x, n)>",
    ]


def test_the_default_bundle(run: Runner) -> None:
    """``aot.use`` before ``AOT_BUNDLE_PATH``; neither is an error that says both."""
    result = run(
        """
        from aot.loader import default_bundle
        neither = error(default_bundle)
        os.environ["AOT_BUNDLE_PATH"] = PATH + "-not"
        wrong = error(default_bundle)
        os.environ["AOT_BUNDLE_PATH"] = PATH
        first = default_bundle()
        same = default_bundle() is first
        used = aot.use(PATH)
        answer([neither, wrong[0], same, used is default_bundle(), used is not first, aot.use(first) is first,
                default_bundle() is first])
        """,
        simple(),
    )
    neither, wrong, *rest = result.value
    assert neither == [
        "UsageError",
        "found no bundle: AOT_BUNDLE_PATH is not set and aot.use was not called; "
        'wanted aot.use("path/to/bundle"), or the path in that variable',
    ]
    assert wrong == "NoBundleError"
    assert rest == [True] * 5


@pytest.mark.parametrize("python", [(), ("-I",), ("-OO",), ("-W", "error")])
def test_no_compiler_is_needed(run: Runner, python: tuple[str, ...]) -> None:
    """Field cases C28 and C29: nothing on PATH, Triton's import refused, optimised Python."""
    result = run(
        """
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("triton", "torch", "yaml", "click", "elftools"):
                    raise ImportError(name + " was imported")
        sys.meta_path.insert(0, Refuse())
        aot.open(PATH).kernel("k")[(1,)](Array(), 16)
        answer(sorted(m for m in ("triton", "torch", "yaml") if m in sys.modules))
        """,
        simple(),
        python=python,
        env={"PATH": ""},
    )
    assert result.value == []
    assert result.stderr == ""
    assert len(result.launches) == 1


def test_without_its_source(run: Runner, tmp_path: Path) -> None:
    """Field case C29: a launch from byte code alone."""
    copy = tmp_path / "lib" / "aot"
    shutil.copytree(
        Path(aot.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "cli")
    )
    assert compileall.compile_dir(copy, legacy=True, quiet=2, force=True)
    for source in copy.rglob("*.py"):
        source.unlink()
    result = run(
        """
        assert "aot" in sys.modules and not aot.__file__.endswith(".py"), aot.__file__
        aot.open(PATH).kernel("k")[(1,)](Array(), 16)
        """,
        simple(),
        env={"PYTHONPATH": str(tmp_path / "lib"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert len(result.launches) == 1


def test_the_exit_is_quiet(driver: Path, tmp_path: Path) -> None:
    """Field case C13: interpreter exit with live handles."""
    path = make_bundle(tmp_path / "b", simple())
    result = run_script(
        driver,
        "bundle = aot.open(PATH); kernel = bundle.kernel('k'); kernel[(1,)](Array(), 16); answer(1)",
        path,
        python=("-X", "dev"),
    )
    assert result.stderr == ""
