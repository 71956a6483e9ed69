"""From a fresh process to the first result, beside Triton's JIT: ``python -m benchmarks.cold_start -o FILE``.

Every number is the median over fresh processes with the files in the page cache; one run of each probe
comes first and is not counted. Needs a GPU, torch, Triton, and ``make bundle bundle-benchmarks``.
``benchmarks/probes.py`` is what runs in each process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import aot
from benchmarks.dispatch import versions
from benchmarks.probes import PRELOADED

ROOT = Path(__file__).resolve().parent.parent
REPEATS = 5


def probe(name: str, argument: object, **environment: str) -> dict[str, float]:
    """Run one probe in a process of its own and return what it found."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(ROOT / "benchmarks" / "probes.py"), name, str(argument)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path} | environment
    )
    if done.returncode:
        raise RuntimeError(f"probe {name} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def medians(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """The median of each number, with the smallest and largest."""
    return {
        name: {
            "median": statistics.median(values),
            "low": min(values),
            "high": max(values),
        }
        for name in runs[0]
        for values in [[run[name] for run in runs]]
    }


def write_cubins(bundle: aot.Bundle, folder: Path) -> None:
    """Write the cubins that are preloaded as files ``NUMBER.SYMBOL``."""
    kernels = [kernel for kernel in bundle.reader.manifest.kernels if kernel.name in PRELOADED]
    entries = [entry for k in kernels for table in k.tables for entry in bundle.reader.table(table)]
    for number, entry in enumerate(entries):
        cubin = bundle.reader.cubin(entry.variant.target, entry.binary.cubin)
        (folder / f"{number:03}.{entry.binary.symbol}").write_bytes(cubin)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run every probe ``options.repeats`` times, after once for the page cache."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        cubins = Path(scratch) / "cubins"
        cubins.mkdir()
        with aot.open(options.big) as bundle:
            write_cubins(bundle, cubins)
        for name, argument in (
            ("import_alone", options.big),
            ("import_after_torch", options.big),
            ("first_op", options.reductions),
            ("first_kernel", options.kernels),
            ("preload", options.big),
            ("bare_load", cubins),
        ):
            runs = [probe(name, argument) for _ in range(1 + options.repeats)]
            found[name] = medians(runs[1:])
        cold, warm = [], []
        for repeat in range(1 + options.repeats):
            cache = str(Path(scratch) / f"triton-{repeat}")
            cold.append(probe("jit", "", TRITON_CACHE_DIR=cache))
            warm.append(probe("jit", "", TRITON_CACHE_DIR=cache))
        found["jit_cold"], found["jit_warm"] = medians(cold[1:]), medians(warm[1:])
    return found


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cold_start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--big", default="dist/bundle-10k", help="the bundle of benchmarks.bigbundle")
    parser.add_argument("--reductions", default="dist/reductions")
    parser.add_argument("--kernels", default="dist/benchmark-kernels")
    options = parser.parse_args()
    with aot.open(options.big) as bundle:
        manifest = bundle.reader.manifest
        big = {
            "variants": manifest.variants,
            "kernels": len(manifest.kernels),
            "tables": sum(len(kernel.tables) for kernel in manifest.kernels),
            "bytes": sum(path.stat().st_size for path in Path(options.big).iterdir()),
        }
    result = {
        "what": f"Median of {options.repeats} fresh processes, files in the page cache",
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "bundle": big,
        "probes": measure(options),
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, numbers in result["probes"].items():
        for what, number in numbers.items():
            print(f"{name:20} {what:25} {number['median']:14.2f}")


if __name__ == "__main__":
    main()
