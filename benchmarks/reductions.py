"""Times the shipped reductions beside ATen on this machine's GPU: ``python -m benchmarks.reductions``.

Ours run through :mod:`aot.ops` from a bundle (``--bundle``, or the one that is found), ATen through
:mod:`torch`, both measured in turn by :func:`benchmarks.timing.device_times`: device time of launches
in a graph, inputs from memory, random data. With ``--compiled`` a process of its own measures
``torch.compile(dynamic=False)`` too, since that needs Triton and ours must not.

"Limit" is the input read once at 4.5 TB/s, what an H200 reads at most. A case is losing where ours
takes more than 1/0.95 of the faster rival's time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

import aot
from benchmarks.cases import CASES, Case, random_input
from benchmarks.timing import buffers_for, device_times

READ_BYTES_PER_US = 4.5e6


def calls(case: Case, namespace: Any) -> Callable[[torch.Tensor], Any]:
    """The case's call on an input, in ``torch`` or in ``aot.ops``."""
    function = getattr(namespace, case.op)
    kwargs: dict[str, Any] = {} if case.dim is None else {"dim": case.dim}
    if case.dtype.startswith("float8"):
        kwargs["dtype"] = torch.float32
    return lambda x: function(x, **kwargs)


def agrees(case: Case, x: torch.Tensor) -> bool:
    """Whether ours is what ATen says: exactly, but for sums and products of floats."""
    ours, theirs = calls(case, aot.ops)(x), calls(case, torch)(x)
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
    for found, wanted in pairs:
        if case.op in ("sum", "mean") and (wanted.is_floating_point() or wanted.is_complex()):
            # Elements are of size one: their sums' rounding errors grow with the root of their number.
            root = math.sqrt(x.numel() / wanted.numel())
            scale = 1.0 if case.op == "sum" else root**-2
            close = torch.isclose(found, wanted, rtol=1.6e-2, atol=1e-3 * root * scale)
        elif case.op == "prod":
            close = torch.isclose(found, wanted, rtol=1e-2)
        else:
            close = found == wanted
        if found.dtype != wanted.dtype or not bool(close.all()):
            return False
    return True


def measure(case: Case, rivals: dict[str, Callable[[torch.Tensor], Any]]) -> dict[str, float]:
    """Microseconds of each rival on the same inputs."""
    buffers = buffers_for(random_input(case, "cuda"))
    return {name: round(device_times(call, buffers).median, 3) for name, call in rivals.items()}


def compiled_times(names: list[str]) -> dict[str, float]:
    """Measure ``torch.compile`` in this process, which must be one of its own."""
    found: dict[str, float] = {}
    for case in CASES:
        if case.name in names:
            torch._dynamo.reset()
            call = torch.compile(calls(case, torch), dynamic=False)
            try:
                found[case.name] = measure(case, {"compiled": call})["compiled"]
            except Exception as error:
                # What the compiler cannot do is a result too.
                print(f"{case.name}: not compiled: {error}".splitlines()[0], file=sys.stderr)
    return found


def machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "processors": properties.multi_processor_count,
        "l2_bytes": int(properties.L2_cache_size),
        "driver": _driver_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aot": aot.__version__,
    }


def _driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def report(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'case':58} {'ATen':>9} {'compiled':>9} {'ours':>9} {'ratio':>6} {'limit':>6}"]
    for row in rows:
        compiled = "-" if row["compiled_us"] is None else f"{row['compiled_us']:.2f}"
        lines.append(
            f"{row['name']:58} {row['aten_us']:9.2f} {compiled:>9} {row['ours_us']:9.2f} {row['ratio']:6.2f}"
            f" {row['of_limit']:6.0%}{'  LOSING' if row['losing'] else ''}"
            f"{'' if row['agrees'] else '  WRONG'}"
        )
    return "\n".join(lines)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reductions", description=__doc__.splitlines()[0]
    )
    parser.add_argument("-o", "--output", help="write the result as JSON here")
    parser.add_argument("--bundle", default=os.environ.get("AOT_BUNDLE_PATH"), help="the bundle to measure")
    parser.add_argument("--compiled", action="store_true", help="measure torch.compile too")
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    parser.add_argument("--only-compiled", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "benchmarks.reductions: found no CUDA GPU, which it measures\n")
    wanted = [case for case in CASES if given.only in case.name]
    if given.only_compiled:
        print(json.dumps(compiled_times([case.name for case in wanted])))
        return
    bundle = aot.open(given.bundle) if given.bundle else None
    if bundle is not None:
        aot.use(bundle)
    present = [case for case in wanted if hasattr(aot.ops, case.op)]
    compiled: dict[str, float] = {}
    if given.compiled:
        command = [sys.executable, "-m", "benchmarks.reductions", "--only-compiled", "--only", given.only]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        compiled = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for case in present:
        right = agrees(case, random_input(case, "cuda"))
        times = measure(case, {"aten": calls(case, torch), "ours": calls(case, aot.ops)})
        best = min(times["aten"], compiled.get(case.name, math.inf))
        limit = case.bytes / READ_BYTES_PER_US
        rows.append(
            {
                "name": case.name,
                "op": case.op,
                "dtype": case.dtype,
                "shape": list(case.shape),
                "dim": case.dim,
                "agrees": right,
                "aten_us": times["aten"],
                "compiled_us": compiled.get(case.name),
                "ours_us": times["ours"],
                "ratio": round(times["aten"] / times["ours"], 3),
                "limit_us": round(limit, 3),
                "of_limit": round(limit / times["ours"], 4),
                "losing": times["ours"] > best / 0.95,
            }
        )
        torch.cuda.empty_cache()
    result = {
        "benchmark": "reductions",
        "machine": machine(),
        "method": "graph of 16 to 64 launches over rotating inputs, L2 flushed before each replay, "
        "median of 25 replays, microseconds a launch",
        "cases": rows,
        "absent": [case.name for case in wanted if case not in present],
        "losing": [row["name"] for row in rows if row["losing"]],
        "geometric_mean_over_aten": round(geometric_mean([row["ratio"] for row in rows]), 3)
        if rows
        else None,
        "geometric_mean_over_compiled": round(
            geometric_mean([row["compiled_us"] / row["ours_us"] for row in rows if row["compiled_us"]]), 3
        )
        if compiled
        else None,
    }
    print(report(rows))
    print(f"geometric mean over ATen: {result['geometric_mean_over_aten']}; losing: {len(result['losing'])}")
    if given.output:
        with open(given.output, "w", encoding="utf-8") as file:
            file.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
