"""``aot spec``: what a service asked for, as additions to the specs of its kernels."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

import click

from aot.cli import output
from aot.errors import UsageError


@click.group()
def spec() -> None:
    """Make and change specs."""


@spec.command("from-record")
@click.argument("record", nargs=-1, required=True)
@click.option(
    "--spec",
    "specs",
    multiple=True,
    required=True,
    metavar="SPEC",
    help="File or folder: the specs that the recorded bundles were built from.",
)
@click.option("-o", "--output", "out", metavar="DIR", help="Folder for the specs; default: show a diff.")
@click.option("--exact", is_flag=True, help="Add what was recorded and nothing around it.")
@click.option("--skip-bad", is_flag=True, help="Pass over lines of RECORD that are no records.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def from_record(
    record: tuple[str, ...],
    specs: tuple[str, ...],
    out: str | None,
    exact: bool,
    skip_bad: bool,
    as_json: bool,
) -> int:
    """Add to specs what the calls in RECORD (files of AOT_RECORD) missed, so that a build serves them.

    The specs' text stays as it is but for what is added. DIR may be the specs' own folder; a file
    that is already there is taken in the place of the one given, so that running again merges.
    Exits with 1 where a call is one that no change of its spec serves.

    Example: aot spec from-record calls.jsonl --spec specs -o specs
    """
    from aot.build.fromrecord import revise
    from aot.build.specfiles import gather, write
    from aot.recordfile import read_records, total

    if out == "":
        raise UsageError("--output: found an empty path, wanted a folder for the specs")
    read = [read_records(file, skip_bad=skip_bad) for file in record]
    records = [found for file in read for found in file.records]
    notes = [note for file in read for note in file.notes]
    files = gather(specs, None if out is None else Path(out))
    revision = revise(list(files.texts), files.texts, records, exact=exact)
    written = write(files, revision) if out is not None else []
    if as_json:
        output.print_json(
            {
                "calls": total(records),
                "served": revision.served,
                "added": revision.added,
                "files": [
                    {"file": f.file, "changed": f.old != f.new, "before": f.before, "after": f.after}
                    for f in revision.files
                ],
                "written": written,
                "problems": list(revision.problems),
                "notes": notes,
            }
        )
    else:
        for file in revision.files:
            if out is None:
                click.echo(_diff(file.old, file.new, file.file), nl=False)
            click.echo(f"{file.file}: {file.before} variants before, {file.after} after")
        click.echo(
            f"{total(records)} calls: {revision.served} served by the specs as they were, "
            f"{revision.added} by what was added, {total(records) - revision.served - revision.added} by none"
        )
        for path in written:
            click.echo(f"wrote {path}")
        _complain(notes)
        _complain(revision.problems)
    return 1 if revision.problems else 0


def _diff(old: str, new: str, name: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), name, f"{name} (changed)"
    )
    return "".join(line if line.endswith("\n") else f"{line}{os.linesep}" for line in lines)


def _complain(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(f"aot: {line}", err=True)
