"""``aot doctor`` as text or JSON. Needs the base install alone: a service has no more."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import sys
from collections.abc import Iterator

from aot.loader.doctor import BundleReport, Report, examine
from aot.loader.verdicts import Contents


def run(as_json: bool) -> int:
    """Print the report and return the exit code: 1 where the default bundles cannot serve this machine."""
    # What is left out is in the report, with its reason.
    logging.getLogger("aot").setLevel(logging.CRITICAL)
    report = examine()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may hold characters that the locale cannot write.
        sys.stdout.reconfigure(errors="backslashreplace")
    if as_json:
        print(json.dumps(dataclasses.asdict(report), indent=1))
    else:
        print("\n".join(_lines(report)))
    return 0 if report.serves else 1


def _lines(report: Report) -> Iterator[str]:
    driver, torch = report.driver, report.torch
    yield f"aot-kernels {report.aot}, Python {report.python}, {report.system}"
    bindings = f"cuda-bindings {driver.bindings}" if driver.bindings else "no cuda-bindings"
    yield f"driver: {f'CUDA {driver.version}' if driver.version else 'none'}, {bindings}"
    for gpu in report.gpus:
        yield (
            f"gpu: cuda:{gpu.index} ({gpu.name}, capability {gpu.capability}), "
            f"{gpu.max_shared} bytes of shared memory a block"
        )
    if torch is None:
        yield "torch: none"
    else:
        yield f"torch: {torch.version}, {f'CUDA {torch.cuda}' if torch.cuda else 'without CUDA'}"
    yield f"triton: {report.triton or 'none'} (not needed)"
    launcher = report.launcher
    yield f"launcher: {'native' if launcher.native else f'Python ({launcher.reason})'}"
    for number, bundle in enumerate((b for b in report.bundles if b.contents is not None), 1):
        yield f"bundle {number}: {bundle.path}, through {bundle.source}"
        yield from _bundle(bundle.contents) if bundle.contents else ()
    yield from (f"left out: {_left_out(bundle)}" for bundle in report.bundles if bundle.contents is None)
    for name, value in report.environment.items():
        yield f"environment: {name}={value}"
    yield from (f"note: {note}" for note in report.notes)
    yield from (f"problem: {problem}" for problem in report.problems)
    if report.serves:
        yield "every kernel of these bundles can run on every GPU"


def _bundle(held: Contents) -> Iterator[str]:
    yield (
        f"  format {held.format_version}, ABI {held.launch_abi}, "
        f"by aot-kernels {held.aot}, Triton {held.triton}, ptxas {held.ptxas}"
    )
    targets = ", ".join(held.targets) or "no target"
    yield f"  kernels {', '.join(held.kernels)}: {held.variants} variants for {targets}"
    files = held.file_system
    place = f"{files.type or 'unknown file system'}{f' at {files.mount}' if files.mount else ''}"
    kinds = [word for word, yes in (("network", files.network), ("read-only", files.read_only)) if yes]
    yield f"  on {', '.join([place, *kinds])}"
    for gpu in held.gpus:
        yield f"  cuda:{gpu.gpu}: {gpu.runs} of {gpu.variants} variants can run"
        for target in gpu.targets:
            for reason in target.reasons:
                yield f"    {target.variants - target.runs} of {target.target} cannot: {reason}"


def _left_out(bundle: BundleReport) -> str:
    return f"{bundle.source}: {bundle.reason}"
