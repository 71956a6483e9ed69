"""What a bundle can and cannot run on each GPU, and why: counted from its tables, nothing is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from aot.errors import BundleError
from aot.loader.bundle import Bundle
from aot.loader.driver import Device
from aot.loader.machine import DriverFacts, FileSystem, file_system
from aot.manifest import TableRef
from aot.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetVerdict:
    """The variants of one target on one GPU: ``runs`` of them run, ``reasons`` say why others do not."""

    target: str
    variants: int
    runs: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVerdict:
    """One bundle on one GPU. ``unserved``: kernels without a variant that runs there."""

    gpu: int
    variants: int
    runs: int
    targets: tuple[TargetVerdict, ...]
    unserved: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What an open bundle holds and says of itself. ``missing`` counts variants that failed to compile,
    ``damaged`` has a sentence for each table that cannot be read."""

    format_version: int
    launch_abi: int
    aot: str
    triton: str
    ptxas: str
    kernels: tuple[str, ...]
    variants: int
    missing: int
    targets: tuple[str, ...]
    damaged: tuple[str, ...]
    file_system: FileSystem
    gpus: tuple[GpuVerdict, ...]


# How many variants of a table need how much shared memory, or why the table cannot be read.
_Needs = Counter[int] | str


def contents(bundle: Bundle, devices: Sequence[Device], driver: DriverFacts) -> Contents:
    """Read every table of ``bundle`` and judge it for each device."""
    manifest = bundle.reader.manifest
    made = manifest.provenance
    needs = {ref: _needs(bundle, ref) for kernel in manifest.kernels for ref in kernel.tables}
    refused = _driver_reason(made.ptxas, driver)
    return Contents(
        format_version=manifest.format_version,
        launch_abi=manifest.launch_abi,
        aot=made.aot,
        triton=made.triton,
        ptxas=made.ptxas,
        kernels=bundle.kernels,
        variants=manifest.variants,
        missing=len(manifest.missing),
        targets=bundle.targets,
        damaged=tuple(reason for reason in needs.values() if isinstance(reason, str)),
        file_system=file_system(bundle.reader.path),
        gpus=tuple(_verdict(bundle, device, needs, refused) for device in devices),
    )


def _needs(bundle: Bundle, ref: TableRef) -> _Needs:
    try:
        return Counter(entry.binary.shared for entry in bundle.reader.table(ref))
    except BundleError as error:
        return str(error)


def _driver_reason(ptxas: str, driver: DriverFacts) -> str | None:
    """Why the driver is too old for what this ptxas made. CUDA promises nothing over major versions."""
    major = ptxas.partition(".")[0]
    if driver.version is None or not major.isdigit() or int(major) <= int(driver.version.partition(".")[0]):
        return None
    return (
        f"it was made by ptxas {ptxas}, the driver supports CUDA {driver.version}; "
        f"upgrade the driver to one for CUDA {major}.0 or newer"
    )


def _verdict(
    bundle: Bundle, device: Device, needs: dict[TableRef, _Needs], refused: str | None
) -> GpuVerdict:
    variants: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    reasons: dict[str, dict[str, None]] = {}
    unserved = []
    for kernel in bundle.reader.manifest.kernels:
        served = 0
        for ref in kernel.tables:
            found, why = _running(ref, needs[ref], device, refused)
            variants[ref.target] += ref.count
            runs[ref.target] += found
            served += found
            reasons.setdefault(ref.target, {}).update(dict.fromkeys(why))
        if not served:
            unserved.append(kernel.name)
    return GpuVerdict(
        gpu=device.index,
        variants=variants.total(),
        runs=runs.total(),
        targets=tuple(
            TargetVerdict(target=t, variants=variants[t], runs=runs[t], reasons=tuple(reasons[t]))
            for t in sorted(variants)
        ),
        unserved=tuple(unserved),
    )


def _running(ref: TableRef, needs: _Needs, device: Device, refused: str | None) -> tuple[int, list[str]]:
    """How many variants of a table run on ``device``, and why the others do not."""
    wrong = Target.parse(ref.target).reject_reason(device.capability) or refused
    if wrong is not None:
        return 0, [wrong]
    if isinstance(needs, str):
        return 0, [needs]
    over = [size for size in needs if size > device.max_shared]
    if not over:
        return ref.count, []
    why = f"some need up to {max(over)} bytes of shared memory, the device allows {device.max_shared}"
    return ref.count - sum(needs[size] for size in over), [why]
