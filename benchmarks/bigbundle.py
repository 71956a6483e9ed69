"""A bundle of 10,000 variants, from the cubins of a built one: ``python -m benchmarks.bigbundle -o DIR``.

It holds the reductions again and again under other names, as a service has that uses many kernels,
until there are 10,000 variants; and the kernels ``preload_rows`` and ``preload_cols``, whose 500 variants
have 500 different cubins. The writer is that of every build, so the files are what such a build gives.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

import aot
from aot.build.abi import read_cubin
from aot.build.jobs import Compiled, Result, Toolchain
from aot.build.plan import Plan, PlannedKernel, make_plan
from aot.build.specfile import load_specs
from aot.build.writer import write_bundle
from aot.manifest import Entry, Variant, encode
from aot.target import Target
from benchmarks.probes import PRELOADED

VARIANTS = 10_000


def built_entries(bundle: aot.Bundle) -> dict[bytes, Entry]:
    """Every entry of a bundle by its variant's JSON."""
    tables = (table for kernel in bundle.reader.manifest.kernels for table in kernel.tables)
    return {encode(entry.variant): entry for table in tables for entry in bundle.reader.table(table)}


def compiled(bundle: aot.Bundle, entry: Entry) -> Compiled:
    """What the compiler gave for an entry."""
    cubin = bundle.reader.cubin(entry.variant.target, entry.binary.cubin)
    binary = entry.binary
    info = read_cubin(cubin, binary.symbol)
    return Compiled(
        cubin=cubin, info=info, symbol=binary.symbol, shared=binary.shared, scratch=binary.scratch
    )


def renamed(kernel: PlannedKernel, name: str, keep: Sequence[int]) -> PlannedKernel:
    """The kernel under another name with the variants at ``keep``."""
    variants = tuple(
        replace(planned, variant=msgspec.structs.replace(planned.variant, kernel=name))
        for planned in (kernel.variants[index] for index in keep)
    )
    return replace(
        kernel, spec=replace(kernel.spec, kernel=name, general=None), variants=variants, refused=()
    )


def distinct(kernel: PlannedKernel, entries: Mapping[bytes, Entry], count: int) -> list[int]:
    """Indices of ``count`` variants with different cubins."""
    first: dict[str, int] = {}
    for index, planned in enumerate(kernel.variants):
        first.setdefault(_entry(entries, planned.variant).binary.cubin.sha256, index)
    if len(first) < count:
        raise SystemExit(f"{kernel.spec.kernel} has {len(first)} different cubins, wanted {count}")
    return sorted(first.values())[:count]


def kernels(plan: Plan, entries: Mapping[bytes, Entry]) -> Iterator[PlannedKernel]:
    """The kernels of the big bundle."""
    by_name = {kernel.spec.kernel: kernel for kernel in plan.kernels}
    left = VARIANTS
    for name, (source, count) in PRELOADED.items():
        yield renamed(by_name[source], name, distinct(by_name[source], entries, count))
        left -= count
    copy = 0
    while left:
        for kernel in plan.kernels:
            keep = range(min(left, len(kernel.variants)))
            left -= len(keep)
            if keep:
                yield renamed(kernel, f"{kernel.spec.kernel}_{copy}", keep)
        copy += 1


def _entry(entries: Mapping[bytes, Entry], variant: Variant) -> Entry:
    found = entries.get(encode(variant))
    if found is None:
        raise SystemExit(f"the bundle lacks a variant of {variant.kernel}: build it again with make bundle")
    return found


def main() -> None:
    """Write the bundle."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bigbundle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--reductions", default="dist/reductions", help="the built bundle (make bundle)")
    options = parser.parse_args()
    with aot.open(options.reductions) as bundle:
        plan = make_plan(load_specs(["kernel_specs/reductions"]), tuple(map(Target.parse, bundle.targets)))
        entries = built_entries(bundle)
        results: dict[str, Result] = {}
        for planned in plan.variants:
            if planned.job.key not in results:
                results[planned.job.key] = compiled(bundle, _entry(entries, planned.variant))
        made = bundle.reader.manifest.provenance
        toolchain = Toolchain(triton=made.triton, ptxas=made.ptxas, environment=made.environment)
        big = Plan(kernels=tuple(kernels(plan, entries)), targets=plan.targets)
        manifest = write_bundle(big, results, toolchain, options.output)
    print(f"{options.output}: {manifest.variants} variants, {manifest.packs[0].cubins} cubins")


if __name__ == "__main__":
    main()
