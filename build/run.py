"""One build, from a plan to a bundle and a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.build.filters import spell_axes
from aot.build.jobs import Compiled, CompileJob, Failed, Result
from aot.build.plan import Plan, PlannedVariant
from aot.build.pool import pool
from aot.build.writer import check_output, check_result, write_bundle
from aot.errors import BuildError
from aot.manifest import Const, Manifest, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A variant that has no binary, and why."""

    kernel: str
    target: str
    axes: Mapping[str, Const]
    error: str

    def __str__(self) -> str:
        return f"{self.kernel} {spell_axes(self.axes)} on {self.target}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a build did. ``manifest`` is None where nothing was published; ``size`` is bytes on disk.

    ``built`` are the variants that have a binary, ``variants`` counts all that were planned.
    """

    manifest: Manifest | None
    built: tuple[Variant, ...]
    failures: tuple[Failure, ...]
    variants: int
    jobs: int
    cubins: int
    size: int
    seconds: float


def build(
    plan: Plan,
    out: Path,
    *,
    workers: int,
    keep_going: bool = False,
    timeout: float = 300.0,
    progress: Callable[[int, int, CompileJob, Result], None] | None = None,
) -> Report:
    """Compile a plan's jobs on ``workers`` processes and write the bundle to ``out``.

    A failed job is recorded and the others go on. With failures nothing is published
    unless ``keep_going``. ``timeout`` is seconds for each job; ``progress`` is called with
    (done, total, job, result). Raises ``BuildError`` where the compiler itself cannot run,
    ``UsageError`` where ``out`` cannot be written.
    """
    started = time.monotonic()
    check_output(out)
    jobs = plan.jobs
    done = 0

    def count(job: CompileJob, result: Result) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(jobs), job, result)

    with pool(max(1, workers), tuple(map(str, plan.targets))) as compilers:
        toolchain = compilers.start()
        raw = compilers.run(jobs, timeout, count)
    if len(raw) != len(jobs):
        raise BuildError(f"found {len(raw)} results, wanted {len(jobs)}")
    results, failures = _check(plan.variants, raw)
    failures += [Failure(kernel=r.kernel, target=r.target, axes=r.axes, error=r.reason) for r in plan.refused]
    compiled = any(isinstance(result, Compiled) for result in results.values())
    manifest = None
    if compiled and (keep_going or not failures):
        manifest = write_bundle(plan, results, toolchain, out)
    return Report(
        manifest=manifest,
        built=tuple(v.variant for v in plan.variants if isinstance(results[v.job.key], Compiled)),
        failures=tuple(failures),
        variants=len(plan.variants),
        jobs=len(jobs),
        cubins=sum(pack.cubins for pack in manifest.packs) if manifest else 0,
        size=sum(path.stat().st_size for path in out.iterdir()) if manifest else 0,
        seconds=time.monotonic() - started,
    )


def _check(
    variants: tuple[PlannedVariant, ...], raw: Mapping[str, Result]
) -> tuple[dict[str, Result], list[Failure]]:
    results: dict[str, Result] = {}
    failures: list[Failure] = []
    for planned in variants:
        key = planned.job.key
        if key not in results:
            results[key] = check_result(planned.variant, planned.job, raw[key])
        result = results[key]
        if isinstance(result, Failed):
            v = planned.variant
            failures.append(Failure(kernel=v.kernel, target=v.target, axes=v.axes, error=result.error))
    return results, failures
