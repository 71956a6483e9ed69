"""The other ways to launch a :class:`benchmarks.launches.Launch`, each at its best.

Whatever a program would do once (loading, wrapping a stream, the launch configuration, typed
scalars) is done before the clock starts. Each function returns the names that its statement uses.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.launches import Launch

SOURCES = Path(__file__).resolve().parent / "native"
BUILT = Path(os.environ.get("AOT_BENCHMARKS_NATIVE", "dist/benchmark-native"))
TVM_ORDER = ("sum_rows", "rms_norm", "add_products")


def compiled(source: str, compiler: str, *flags: str) -> Path:
    """Compile a file of ``benchmarks/native`` unless that was done since it changed."""
    path = SOURCES / source
    library = BUILT / f"{path.stem}.so"
    if not library.exists() or library.stat().st_mtime < path.stat().st_mtime:
        BUILT.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(path), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{compiler} cannot compile {source}:\n{done.stderr}")
    return library.resolve()


def load_function(launch: Launch) -> tuple[int, int]:
    """Load the cubin; return its handles as a kernel and as a function of the current context."""
    from cuda.bindings import driver as cu

    def checked(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(f"the driver refused: {result[0]!r}")
        return result[1]

    library = checked(cu.cuLibraryLoadData(launch.cubin, [], [], 0, [], [], 0))
    kernel = checked(cu.cuLibraryGetKernel(library, launch.entry.binary.symbol.encode()))
    return int(kernel), int(checked(cu.cuKernelGetFunction(kernel)))


def bare_loop(launch: Launch, handle: int) -> Callable[[int], float]:
    """Return a function that launches so many times, in C alone, and returns the seconds."""
    library = ctypes.CDLL(str(compiled("bare_launch.c", "gcc")))
    run = library.bare_launch
    run.restype = ctypes.c_double
    void_p = ctypes.c_void_p
    run.argtypes = [void_p, void_p, void_p, ctypes.c_uint, ctypes.c_uint, void_p, void_p, ctypes.c_int]
    cu_launch_kernel = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, void_p)
    values = launch.parameters()
    addresses = (void_p * len(values))(*map(ctypes.addressof, values))
    grid = (ctypes.c_uint * 3)(*launch.sizes)
    stream = torch.cuda.current_stream().cuda_stream
    shared = launch.entry.binary.shared

    def batch(calls: int) -> float:
        # The closure keeps `values` alive: `addresses` are theirs.
        assert len(values) == len(addresses)
        seconds = run(cu_launch_kernel, handle, grid, launch.block, shared, stream, addresses, calls)
        if seconds < 0:
            raise RuntimeError("cuLaunchKernel failed")
        return float(seconds)

    return batch


def cuda_core(launch: Launch) -> dict[str, Any]:
    """cuda.core: ``launch(stream, config, kernel, …)`` with pointers and typed scalars."""
    from cuda import core

    if not hasattr(core, "Device"):
        from cuda.core import experimental as core

    device = core.Device(torch.cuda.current_device())
    device.set_current()

    class TorchStream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, torch.cuda.current_stream().cuda_stream)

    shared = launch.entry.binary.shared
    config = core.LaunchConfig(grid=launch.sizes, block=(launch.block, 1, 1), shmem_size=shared)
    kernel = core.ObjectCode.from_cubin(launch.cubin).get_kernel(launch.entry.binary.symbol)
    numbers = launch.parameters()[len(launch.tensors) : -launch.entry.binary.hidden or None]
    return {
        "launch": core.launch,
        "stream": device.create_stream(TorchStream()),
        "config": config,
        "kernel": kernel,
        # An int is passed as 8 bytes, as the hidden pointers are.
        "numbers": (*numbers, *[0] * launch.entry.binary.hidden),
    }


def tvm_ffi(launch: Launch, handle: int) -> Any:
    """tvm-ffi: the function of ``native/tvm_launch.cc`` that launches this kernel."""
    import tvm_ffi as tvm
    from tvm_ffi import libinfo

    library = Path(libinfo.find_libtvm_ffi()).parent
    include = [f"-I{path}" for path in libinfo.include_paths()]
    flags = ["-std=c++17", *include, f"-L{library}", "-ltvm_ffi", f"-Wl,-rpath,{library}", "-ldl"]
    module = tvm.load_module(str(compiled("tvm_launch.cc", "g++", *flags)))
    name = launch.kernel.name
    module.set_kernel(TVM_ORDER.index(name), handle, *launch.sizes, launch.block, launch.entry.binary.shared)
    return getattr(module, name)
