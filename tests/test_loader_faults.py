"""Faults of driver and bundle: one error each, and the process goes on. Against the fake driver library."""

from __future__ import annotations

import compileall
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, make_bundle, pack_file, scalar, variant
from fakecuda import run_script
from loaderscripts import Runner, simple

import aot


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
        answer([first, second, cu.current_context()[1]])
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
