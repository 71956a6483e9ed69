"""``aot doctor``: can this machine be served?"""

from __future__ import annotations

import click

from aot.cli import diagnosis


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Show driver, GPUs, torch and the default bundles, and what they can and cannot run.

    Exits with 1 where the default bundles cannot serve this machine. Works without GPU, driver
    and torch, and loads nothing.

    Example: AOT_BUNDLE_PATH=dist/reductions aot doctor
    """
    return diagnosis.run(as_json)
