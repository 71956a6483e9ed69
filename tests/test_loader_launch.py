"""What a kernel reads, and over which grid, against the fake driver library."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, pointer, scalar, variant
from loaderscripts import Runner, ints, simple

from aot.manifest import ParamInfo


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
