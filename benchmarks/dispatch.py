"""Host time of one call, beside eager torch and Triton's JIT: ``python -m benchmarks.dispatch -o FILE``.

Microseconds between calls while nothing waits for the GPU: a [64, 1000] fp32 sum, whose kernel takes
less time than its launch. Each number is the median of 30 batches of 200 calls, the GPU idle at
each batch's start. The JIT launches the very same kernel source; its first call, which
compiles, is not counted. Needs a GPU, torch and Triton, and the bundle in AOT_BUNDLE_PATH.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import aot
from aot.loader import default_bundle
from aot.manifest import ConstexprArg


def host_us(call: Callable[[], Any], batches: int = 30, calls: int = 200) -> float:
    """The median over ``batches`` of the host's microseconds for one of ``calls`` calls."""
    for _ in range(20):
        call()
    times = []
    for _ in range(batches):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output

    from aot.kernel_specs.reductions.reduce import reduce_rows as jit

    rows, cols = 64, 1000
    x = torch.randn(rows, cols, device="cuda")
    out = torch.empty(rows, device="cuda")
    partial = torch.empty(16, dtype=torch.float64, device="cuda")
    counter = torch.zeros(16, dtype=torch.int32, device="cuda")
    args = (x, out, partial, counter, rows, cols, cols, 1, 1024, 1.0)
    constexprs = {"OP": "sum", "DTYPE": "float32", "OUT_DTYPE": "float32"}
    prebuilt = default_bundle().kernel("reduce_rows")
    # Both launch the variant that the bundle chooses: its blocks, its grid, its warps.
    chosen = prebuilt[(1, 1)](*args, **constexprs).variant
    blocks = {
        arg.name: arg.value
        for arg in chosen.args
        if isinstance(arg, ConstexprArg) and arg.name not in constexprs
    }
    grid = (-(-rows // blocks["BLOCK_ROWS"]), 1)
    options = {"num_warps": chosen.options.num_warps, "enable_fp_fusion": False}
    paths: dict[str, Callable[[], Any]] = {
        "torch.sum(x, -1)": lambda: torch.sum(x, -1),
        "aot.ops.sum(x, -1)": lambda: aot.ops.sum(x, -1),
        "Triton JIT, kernel[grid](17 arguments)": lambda: jit[grid](*args, **constexprs, **blocks, **options),
        "aot, kernel[grid](17 arguments)": lambda: prebuilt[grid](*args, **constexprs, **blocks, **options),
    }
    measured = {name: round(host_us(call), 2) for name, call in paths.items()}
    torch.testing.assert_close(out, x.sum(-1))
    result = {
        "what": "host microseconds for one call, median of 30 batches of 200",
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton_jit": version("triton"),
        "cuda_bindings": version("cuda-bindings"),
        "aot": aot.__version__,
        "microseconds": measured,
    }
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, value in measured.items():
        print(f"{value:8.2f}  {name}")


if __name__ == "__main__":
    main()
