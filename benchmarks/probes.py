"""What ``benchmarks.cold_start`` measures, each in a fresh process: ``python benchmarks/probes.py NAME ARG``.

A probe prints one JSON object, names to milliseconds or bytes. It is run by its path, and this file
imports almost nothing, so that what is measured is not half imported before the clock starts.
"""

from __future__ import annotations

import sys
import time

# The kernels of the big bundle that are preloaded: whose variants they are, and how many.
PRELOADED = {"preload_rows": ("reduce_rows", 400), "preload_cols": ("reduce_cols", 100)}

_start = 0.0
_found: dict[str, float] = {}


def begin() -> None:
    """Start the clock."""
    global _start
    _start = time.perf_counter()


def end(name: str) -> None:
    """Keep the milliseconds since :func:`begin` under ``name``."""
    _found[name] = (time.perf_counter() - _start) * 1e3


def import_alone(bundle: str) -> None:
    """``import aot`` and an opened bundle, in a process that has nothing."""
    begin()
    import aot

    end("import aot")
    begin()
    aot.open(bundle)
    end("open")


def import_after_torch(bundle: str) -> None:
    """The same in a process that has imported torch."""
    import torch  # noqa: F401

    begin()
    import aot

    end("import aot")
    begin()
    opened = aot.open(bundle)
    end("open")
    begin()
    aot.open(bundle)
    end("open again")
    begin()
    aot.ops  # noqa: B018
    end("import aot.ops")
    assert len(opened.kernels) > 0


def first_op(bundle: str) -> None:
    """The first call of an operation, of another that loads another cubin, and both again."""
    torch, x = _cuda_up()
    import aot

    aot.use(bundle)
    op_sum, op_amax = aot.ops.sum, aot.ops.amax
    for name, op in (("first", op_sum), ("another", op_amax)):
        begin()
        result = op(x, -1)
        end(f"{name} call returned")
        torch.cuda.synchronize()
        end(f"{name} call finished")
        begin()
        op(x, -1)
        end(f"{name} call again")
        expected = x.amax(-1) if name == "another" else x.double().sum(-1).float()
        assert torch.allclose(result, expected, rtol=1e-5, atol=1e-4)


def first_kernel(bundle: str) -> None:
    """The first call of the kernel that :func:`jit` calls too."""
    torch, x = _cuda_up()
    import aot

    kernel = aot.open(bundle).kernel("add_products")
    _add_products(torch, x, kernel)


def jit(_: str) -> None:
    """The same call of Triton's JIT. Its disk cache is where TRITON_CACHE_DIR says."""
    torch, x = _cuda_up()
    begin()
    from benchmarks.kernels.launch import add_products

    end("import triton")
    _add_products(torch, x, add_products)


def preload(bundle: str) -> None:
    """Load 500 cubins, and what memory that took beside the same in :func:`bare_load`."""
    _cuda_up()
    before = _memory()
    begin()
    import aot

    opened = aot.open(bundle)
    end("import and open")
    begin()
    opened.preload(kernels=list(PRELOADED))
    end("preload")
    _grown(before)
    _found["loaded"] = opened.stats()["loads"]


def bare_load(folder: str) -> None:
    """Load each file of ``folder`` with the driver alone, through ctypes."""
    import ctypes
    import os

    _cuda_up()
    driver = ctypes.CDLL("libcuda.so.1")
    before = _memory()
    kept = []
    begin()
    for file in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file), "rb") as opened:
            image = opened.read()
        library, kernel, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        symbol = file.split(".", 1)[1].encode()
        none = ctypes.c_void_p()
        status = (
            driver.cuLibraryLoadData(ctypes.byref(library), image, none, none, 0, none, none, 0)
            or driver.cuLibraryGetKernel(ctypes.byref(kernel), library, symbol)
            or driver.cuKernelGetFunction(ctypes.byref(function), kernel)
        )
        if status:
            raise SystemExit(f"{file}: the driver's status is {status}")
        kept.append((library, kernel, function))
    end("load")
    _grown(before)
    _found["loaded"] = len(kept)


def _cuda_up() -> tuple[object, object]:
    """torch with a context, a kernel of its own run, and a tensor of [64, 1000]."""
    import torch

    x = torch.randn(64, 1000, device="cuda")
    x.double().sum(-1).cpu()
    x.amax(-1)
    torch.cuda.synchronize()
    return torch, x


def _add_products(torch: object, x: object, kernel: object) -> None:
    tensors = [x, *(torch.randn_like(x) for _ in range(3)), torch.empty_like(x)]
    constexprs = {"BLOCK_ROWS": 16, "BLOCK_COLS": 128, "NEGATE": False, "RELU": False, "ACCUMULATE": False}
    for name in ("first call", "first call again"):
        begin()
        kernel[(4, 8)](*tensors, 0, 0, 64, 1000, 1000, 1000, 1000, 1000, 1000, **constexprs)
        end(f"{name} returned")
        torch.cuda.synchronize()
        end(f"{name} finished")
    a, b, c, d, out = tensors
    assert torch.allclose(out, a * b + c * d, rtol=1e-5, atol=1e-4)


def _memory() -> dict[str, int]:
    """This process's memory in bytes: resident (RSS) and its share of it (PSS)."""
    found = {}
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("Rss", "Pss"):
                found[name] = int(rest.split()[0]) * 1024
    return found


def _grown(before: dict[str, int]) -> None:
    import gc

    gc.collect()
    for name, now in _memory().items():
        _found[f"{name} grown"] = now - before[name]


def main() -> None:
    """Run the probe that is named, and print what it found."""
    name, *args = sys.argv[1:]
    globals()[name](*args)
    import json

    print(json.dumps(_found))


if __name__ == "__main__":
    main()
