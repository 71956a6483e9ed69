"""Can this machine be served, and what is in the way? :func:`examine` collects it as plain data.

Works without a GPU, a driver, torch or a bundle: what is missing is part of the report. Nothing is
loaded or launched, and no CUDA context is made.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import aot
from aot.errors import NoBundleError, UsageError
from aot.loader import discovery, fallback, native
from aot.loader.driver import Device
from aot.loader.machine import (
    DriverFacts,
    TorchFacts,
    driver_and_gpus,
    environment,
    torch_facts,
    version_of,
)
from aot.loader.verdicts import Contents, contents
from aot.target import dotted, plain_target

# The native launcher reads torch's tensors through an interface that came with this version.
_NATIVE_TORCH = (2, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: ``capability`` as CUDA writes it (9.0), ``max_shared`` in bytes a block."""

    index: int
    name: str
    capability: str
    max_shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Whether calls go through native code, and the reason of whichever it is."""

    native: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleReport:
    """One place that was looked at: ``reason`` says why it is left out; else ``contents`` is there."""

    source: str
    path: str
    reason: str | None
    contents: Contents | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``serves``: every GPU can run every kernel of the default bundles, so there are no ``problems``.
    ``notes`` are worth knowing and in nobody's way."""

    serves: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    aot: str
    python: str
    system: str
    driver: DriverFacts
    gpus: tuple[Gpu, ...]
    torch: TorchFacts | None
    triton: str | None
    launcher: Launcher
    bundles: tuple[BundleReport, ...]
    environment: dict[str, str]


def examine() -> Report:
    """Look at driver, GPUs, torch and the default bundles; nothing missing or broken there raises."""
    driver, devices = driver_and_gpus()
    torch = torch_facts()
    problems = [driver.error] if driver.error else []
    try:
        opened = iter(discovery.default_bundles())
    except NoBundleError as error:
        problems.append(str(error))
        opened = iter(())
    bundles = [
        BundleReport(
            source=decision.source,
            path=decision.path,
            reason=decision.reason,
            contents=contents(next(opened), devices, driver) if decision.reason is None else None,
        )
        for decision in discovery.decisions()
    ]
    found = [(report.path, report.contents) for report in bundles if report.contents is not None]
    problems += [reason for _, held in found for reason in held.damaged]
    problems += [text for device in devices if found for text in _unserved(device, found)]
    return Report(
        serves=not problems,
        problems=tuple(problems),
        notes=tuple(_notes(torch, found)),
        aot=aot.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        driver=driver,
        gpus=tuple(
            Gpu(index=d.index, name=d.name, capability=dotted(d.capability), max_shared=d.max_shared)
            for d in devices
        ),
        torch=torch,
        triton=version_of("triton"),
        launcher=Launcher(native=native.available(), reason=native.reason()),
        bundles=tuple(bundles),
        environment=environment(),
    )


def _unserved(device: Device, found: Sequence[tuple[str, Contents]]) -> Iterator[str]:
    """The sentence for a GPU on which some kernel has no variant that runs, in any bundle."""
    served: set[str] = set()
    reasons: list[str] = []
    for path, held in found:
        verdict = next(v for v in held.gpus if v.gpu == device.index)
        served |= set(held.kernels) - set(verdict.unserved)
        if verdict.unserved:
            why = [reason for target in verdict.targets for reason in target.reasons]
            reasons.append(f"{path}: {'; '.join(dict.fromkeys(why)) or 'they have no variant'}")
    names = dict.fromkeys(name for _, held in found for name in held.kernels)
    nowhere = [name for name in names if name not in served]
    if nowhere:
        what = f"kernel {', '.join(nowhere)}" if served else "any kernel"
        yield (
            f"{device} cannot run {what}: {'; '.join(reasons)}; "
            f"to build for it: aot build SPEC --target {plain_target(device.capability)} -o DIR"
        )


def _notes(torch: TorchFacts | None, found: Sequence[tuple[str, Contents]]) -> Iterator[str]:
    if torch is None:
        yield "torch is not installed: aot.ops needs it, kernels of your own do not"
    elif torch.cuda is None:
        yield f"torch {torch.version} was built without CUDA: aot.ops needs a build with it"
    elif native.available() and _older(torch.version, _NATIVE_TORCH):
        yield f"torch {torch.version} is older than 2.10: calls of aot.ops go through Python, more slowly"
    try:
        fallback.mode()
    except UsageError as error:
        yield str(error)
    for path, held in found:
        files = held.file_system
        if held.missing:
            yield f"{path} lacks {held.missing} variants, which failed to compile when it was built"
        if files.network:
            yield (
                f"{path} lies on a network file system ({files.type}), and the first launch of each kernel "
                "waits for it; copy the bundle to a local disk, or preload"
            )
        if files.shared:
            yield (
                f"{path} can be written by every user of this machine, and who changes it chooses the code "
                f"that runs; chmod o-w {path}"
            )


def _older(version: str, than: tuple[int, int]) -> bool:
    parts = version.split(".")[:2]
    return len(parts) == 2 and all(part.isdigit() for part in parts) and (int(parts[0]), int(parts[1])) < than
