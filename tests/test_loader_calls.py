"""Wrong calls and misses, against the fake driver library."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pointer, scalar, variant
from fakecuda import run_script
from loaderscripts import Runner, ints, simple

from aot.manifest import DTypeConst, Missing


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
