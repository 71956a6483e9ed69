"""The commands. Each does no more than read its options, call the library and print."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

import aot
from aot.build.filters import spell_axes
from aot.cli import output
from aot.cli.doctor import doctor
from aot.cli.explain import claims, explain
from aot.cli.spec import spec as spec_group
from aot.errors import BundleError, NoBundleError, UsageError
from aot.target import Target

# A week: more is a slip, and the system's own waits take no more than some months.
LONGEST = 7 * 24 * 3600


class _Seconds(click.FloatRange):
    """A number of seconds in a range; no comparison refuses ``nan``, so this does."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is no number of seconds.", param, ctx) if found != found else found


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(aot.__version__, prog_name="aot")
def cli() -> None:
    """Build GPU kernels ahead of time, and look into what was built and what can run."""


def _filters(items: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in items:
        name, separator, values = item.partition("=")
        wanted = [value for value in values.split(",") if value]
        if not (name and separator and wanted):
            raise UsageError(f"--filter: found {item!r}, wanted KEY=VALUE[,VALUE], such as op=sum,prod")
        found.setdefault(name, []).extend(wanted)
    return found


_spec = click.argument("spec", nargs=-1, required=True)
_target = click.option(
    "--target", "targets", multiple=True, metavar="T", help="Such as sm_90a; default: each spec's targets."
)
_filter = click.option(
    "--filter", "filters", multiple=True, metavar="KEY=VALUE[,VALUE]", help="Keep variants with these values."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _make_plan(spec: tuple[str, ...], targets: tuple[str, ...], filters: tuple[str, ...]) -> Any:
    from aot.build.plan import make_plan
    from aot.build.specfile import load_specs

    parsed = [Target.parse(text) for text in targets]
    return make_plan(load_specs(spec), parsed, _filters(filters))


@cli.command()
@_spec
@_target
@_filter
@_json
@click.option("--strict", is_flag=True, help="Exit with 1 where a spec leaves a hole or is refused.")
def plan(
    spec: tuple[str, ...], targets: tuple[str, ...], filters: tuple[str, ...], as_json: bool, strict: bool
) -> int:
    """Show what a build of SPEC (files or folders) would compile, without compiling.

    Example: aot plan kernel_specs/reductions --target sm_90a --filter op=sum
    """
    from aot.build.coverage import plan_holes
    from aot.build.plan import BYTES_PER_JOB, SECONDS_PER_JOB, dtype_of, op_of

    made = _make_plan(spec, targets, filters)
    found = list(plan_holes(made.kernels))
    counts = Counter((op_of(v.variant), dtype_of(v.variant)) for v in made.variants)
    by_target = Counter(v.variant.target for v in made.variants)
    jobs = len(made.jobs)
    if as_json:
        output.print_json(
            {
                "variants": len(made.variants),
                "jobs": jobs,
                "estimate": {
                    "core_seconds": round(jobs * SECONDS_PER_JOB, 1),
                    "bytes": jobs * BYTES_PER_JOB,
                },
                "targets": dict(by_target),
                "counts": [
                    {"op": op, "dtype": dtype, "variants": count} for (op, dtype), count in counts.items()
                ],
                "refused": [
                    {"kernel": r.kernel, "target": r.target, "axes": dict(r.axes), "reason": r.reason}
                    for r in made.refused
                ],
                "holes": [
                    {"kernel": h.kernel, "target": h.target, "group": h.group, "what": h.what} for h in found
                ],
            }
        )
    else:
        output.matrix(counts)
        click.echo()
        output.table(["target", "variants"], by_target.items(), numbers=[1])
        click.echo(
            f"\n{len(made.variants)} variants, {jobs} compile jobs: about {jobs * SECONDS_PER_JOB:.0f} core "
            f"seconds and {output.size(jobs * BYTES_PER_JOB)}"
        )
        for refused in made.refused:
            axes = spell_axes(refused.axes)
            click.echo(f"refused: {refused.kernel} {axes} on {refused.target}: {refused.reason}")
        for hole in found:
            click.echo(f"hole: {hole}")
    return 1 if strict and (found or made.refused) else 0


@cli.command()
@_spec
@_target
@click.option("-o", "--output", "out", required=True, metavar="DIR", help="The bundle's folder.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Compiler processes; default: one a core.")
@_filter
@click.option("--keep-going", is_flag=True, help="Publish what compiled even if some variants failed.")
@click.option(
    "--timeout",
    type=_Seconds(min=1, max=LONGEST),
    default=300.0,
    show_default=True,
    help="Seconds for one variant.",
)
@_json
def build(
    spec: tuple[str, ...],
    targets: tuple[str, ...],
    out: str,
    jobs: int | None,
    filters: tuple[str, ...],
    keep_going: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Compile SPEC (files or folders) into a bundle. Needs no GPU.

    Example: aot build kernel_specs/reductions --target sm_80 --target sm_90a -o dist/reductions -j 2
    """
    from aot.build.plan import dtype_of, op_of
    from aot.build.run import build as run_build
    from aot.build.writer import check_output

    if not out:
        raise UsageError("--output: found an empty path, wanted a folder for the bundle")
    # A wrong folder is said at once, before specs are read and processes start.
    check_output(Path(out))
    made = _make_plan(spec, targets, filters)
    cores = len(os.sched_getaffinity(0))
    with output.BuildProgress(quiet=as_json) as progress:
        report = run_build(
            made,
            Path(out),
            workers=jobs or cores,
            keep_going=keep_going,
            timeout=timeout,
            progress=progress,
        )
    if as_json:
        output.print_json(
            {
                "bundle": out if report.manifest else None,
                "variants": len(report.built),
                "jobs": report.jobs,
                "cubins": report.cubins,
                "bytes": report.size,
                "seconds": round(report.seconds, 2),
                "failures": [
                    {"kernel": f.kernel, "target": f.target, "axes": dict(f.axes), "error": f.error}
                    for f in report.failures
                ],
            }
        )
    elif report.manifest:
        output.matrix(Counter((op_of(v), dtype_of(v)) for v in report.built))
        click.echo(
            f"\n{out}: {report.manifest.variants} variants for {', '.join(map(str, made.targets))}, "
            f"{report.cubins} distinct cubins, {output.size(report.size)}, {report.seconds:.1f} s"
        )
    for failure in report.failures:
        click.echo(f"failed: {failure}", err=True)
    if report.failures:
        click.echo(
            f"aot: {len(report.failures)} of {report.variants + len(made.refused)} variants failed; "
            + (
                f"{out} was published without them"
                if report.manifest
                else "nothing was published (--keep-going publishes the rest)"
            ),
            err=True,
        )
    return 1 if report.failures else 0


@cli.command()
@click.argument("bundle")
@_json
def ls(bundle: str, as_json: bool) -> int:
    """List the variants of BUNDLE, one a row.

    Example: aot ls dist/reductions
    """
    from aot.reader import BundleReader

    with BundleReader(bundle) as reader:
        entries = [
            entry
            for kernel in reader.manifest.kernels
            for ref in kernel.tables
            for entry in reader.table(ref)
        ]
        missing = reader.manifest.missing
    if as_json:
        output.print_json(
            [
                {
                    "kernel": e.variant.kernel,
                    "axes": dict(e.variant.axes),
                    "target": e.variant.target,
                    "claims": claims(e.variant),
                    "bytes": e.binary.cubin.size,
                    "raw_bytes": e.binary.cubin.raw_size,
                    "registers": e.binary.registers,
                    "local": e.binary.local,
                    "shared": e.binary.shared,
                    "num_warps": e.variant.options.num_warps,
                    "sha256": e.binary.cubin.sha256,
                }
                for e in entries
            ]
        )
        return 0
    output.table(
        ["kernel", "axes", "claims", "target", "bytes", "registers", "shared", "warps"],
        [
            [
                e.variant.kernel,
                spell_axes(e.variant.axes),
                ",".join(f"{name}%{claim}" for name, claim in claims(e.variant).items()) or "-",
                e.variant.target,
                e.binary.cubin.size,
                e.binary.registers,
                e.binary.shared,
                e.variant.options.num_warps,
            ]
            for e in entries
        ],
        numbers=[4, 5, 6, 7],
    )
    for gone in missing:
        click.echo(f"missing: {gone.kernel} {spell_axes(gone.axes)} on {gone.target}: {gone.error}")
    return 0


@cli.command()
@click.argument("bundle")
@_json
def verify(bundle: str, as_json: bool) -> int:
    """Check every hash, every count and the ABI of every cubin of BUNDLE.

    Example: aot verify dist/reductions
    """
    from aot.build.verify import faults_of
    from aot.reader import BundleReader

    variants = cubins = None
    targets: list[str] = []
    try:
        with BundleReader(bundle) as reader:
            variants = reader.manifest.variants
            cubins = sum(pack.cubins for pack in reader.manifest.packs)
            targets = [pack.target for pack in reader.manifest.packs]
            faults = faults_of(reader)
    except NoBundleError:
        raise
    except BundleError as error:
        faults = (str(error),)
    if as_json:
        output.print_json({"bundle": bundle, "variants": variants, "cubins": cubins, "faults": list(faults)})
        return 1 if faults else 0
    for fault in faults:
        click.echo(f"aot: {fault}", err=True)
    if not faults:
        click.echo(f"{bundle}: sound, {variants} variants, {cubins} cubins, targets {', '.join(targets)}")
    return 1 if faults else 0


cli.add_command(doctor)
cli.add_command(explain)
cli.add_command(spec_group)
