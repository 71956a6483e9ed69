"""Specs × targets to variants and compile jobs, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aot.build.evaluate import NoValue, combinations, matches
from aot.build.filters import apply_filters
from aot.build.jobs import CompileJob
from aot.build.signature import Signature, read_signature
from aot.build.sources import closure_sha256
from aot.build.variants import job_of, variants_of
from aot.errors import SpecError, UsageError
from aot.manifest import Const, ParamInfo, Variant
from aot.spec import KernelSpec, PointerParam, ScalarParam
from aot.target import Target

# What a reduction of this repository costs, measured with Triton 3.9.0 on one 2.x GHz core.
# They turn a count into an estimate that a person can plan with, nothing more.
SECONDS_PER_JOB = 0.2
BYTES_PER_JOB = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVariant:
    """A variant and the job that compiles it."""

    variant: Variant
    job: CompileJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A combination that a target cannot have, known before compiling."""

    kernel: str
    target: str
    axes: Mapping[str, Const]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKernel:
    """One kernel with its variants in the order of selection."""

    spec: KernelSpec
    params: tuple[ParamInfo, ...]
    source_sha256: str
    variants: tuple[PlannedVariant, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that would be built. ``jobs`` are distinct and sorted by their key."""

    kernels: tuple[PlannedKernel, ...]
    targets: tuple[Target, ...]

    @property
    def variants(self) -> tuple[PlannedVariant, ...]:
        """The variants of all kernels."""
        return tuple(v for kernel in self.kernels for v in kernel.variants)

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The refused combinations of all kernels."""
        return tuple(r for kernel in self.kernels for r in kernel.refused)

    @property
    def jobs(self) -> tuple[CompileJob, ...]:
        """The distinct compile jobs, sorted: equal plans give equal tuples."""
        distinct = {planned.job.key: planned.job for planned in self.variants}
        return tuple(distinct[key] for key in sorted(distinct))


def op_of(variant: Variant) -> str:
    """What a variant is counted under: its ``op`` axis, or the kernel's name."""
    return str(variant.axes.get("op", variant.kernel))


def dtype_of(variant: Variant) -> str:
    """The dtype a variant is counted under: its ``dtype`` axis, or its first pointer's."""
    return str(variant.axes.get("dtype") or (variant.types[0] if variant.types else "-"))


def make_plan(
    specs: Sequence[KernelSpec],
    targets: Sequence[Target] = (),
    filters: Mapping[str, Sequence[str]] | None = None,
) -> Plan:
    """Enumerate every variant of ``specs`` for ``targets`` (default: each spec's own).

    ``filters`` maps an axis, ``kernel`` or ``target`` to the values to keep. Raises
    ``SpecError`` for values that a combination does not have, ``UsageError`` for a filter
    that names nothing, and when nothing is left.
    """
    filters = filters or {}
    faults: list[str] = []
    kernels = []
    for spec in specs:
        chosen = tuple(dict.fromkeys(targets or spec.targets))
        if not chosen:
            faults.append(
                f"{spec.file}:{spec.line}:1: found no targets for kernel {spec.kernel}, "
                "wanted 'targets: [sm_90a]' here or --target"
            )
            continue
        try:
            kernels.append(_plan_kernel(spec, chosen))
        except NoValue as error:
            faults.append(f"{spec.file}:{spec.line}:1: kernel {spec.kernel}: {error}")
    if faults:
        raise SpecError(faults)
    kept = apply_filters(kernels, filters)
    used = {v.variant.target for k in kept for v in k.variants}
    used |= {refused.target for k in kept for refused in k.refused}
    return Plan(kernels=kept, targets=tuple(sorted(Target.parse(t) for t in used)))


def _plan_kernel(spec: KernelSpec, targets: tuple[Target, ...]) -> PlannedKernel:
    signature = read_signature(spec.source)
    sha256 = closure_sha256(signature.path)
    variants: list[PlannedVariant] = []
    refused: list[Refused] = []
    for target in sorted(targets):
        for combination in combinations(spec):
            values = combination.values
            if any(matches(rule, values, str(target)) for rule in spec.exclude):
                continue
            try:
                for variant in variants_of(spec, combination, target):
                    job = job_of(spec, signature.path, sha256, variant)
                    variants.append(PlannedVariant(variant=variant, job=job))
            except UsageError as error:
                refused.append(
                    Refused(kernel=spec.kernel, target=str(target), axes=dict(values), reason=str(error))
                )
    return PlannedKernel(
        spec=spec,
        params=_param_infos(spec, signature),
        source_sha256=sha256,
        variants=tuple(variants),
        refused=tuple(refused),
    )


def _param_infos(spec: KernelSpec, signature: Signature) -> tuple[ParamInfo, ...]:
    defaults = signature.defaults
    return tuple(
        ParamInfo(
            name=param.name,
            kind=(
                "pointer"
                if isinstance(param, PointerParam)
                else "scalar"
                if isinstance(param, ScalarParam)
                else "constexpr"
            ),
            has_default=param.name in defaults,
            default=defaults.get(param.name),
        )
        for param in spec.params
    )
