"""Writes docs/benchmarks.md and its pictures from the results: ``python -m benchmarks.report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import report_calls, report_start

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"


def read(name: str, results: Path = RESULTS) -> Any | None:
    """One result file, or None where there is none."""
    file = results / f"{name}-h200.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def document(results: Path = RESULTS) -> str:
    """The page, every number of it from the result files; a section without a result is left out."""
    sections = (
        ("reductions", _reductions),
        ("dispatch", report_calls.section),
        ("cold-start", report_start.cold_start),
        ("soak", report_start.soak),
        ("gpu-suite", _suite),
    )
    found = [(write, read(name, results)) for name, write in sections]
    return "\n".join([HEAD, *(write(result) for write, result in found if result is not None)])


def pictures(results: Path = RESULTS) -> dict[str, str]:
    """The pictures of the page, by file name in docs/images."""
    drawn: dict[str, str] = {}
    for name, draw in (("dispatch", report_calls.pictures), ("cold-start", report_start.pictures)):
        result = read(name, results)
        if result is not None:
            drawn |= draw(result)
    return drawn


def _reductions(speed: Any) -> str:
    return REDUCTIONS.format(
        gpu=speed["machine"]["gpu"],
        torch=speed["machine"]["torch"],
        driver=speed["machine"]["driver"],
        method=speed["method"],
        count=len(speed["cases"]),
        mean=speed["geometric_mean_over_aten"],
        losing=", ".join(speed["losing"]) or "none",
        absent=", ".join(speed["absent"]),
        cases="\n".join(map(_row, speed["cases"])),
    )


def _suite(suite: Any) -> str:
    return SUITE.format(suite=suite)


def _row(case: Any) -> str:
    loses = " (loses)" if case["losing"] else ""
    return (
        f"| {case['name']} | {case['aten_us']:.1f} | {case['ours_us']:.1f} | {case['ratio']:.2f}{loses} "
        f"| {100 * case['of_limit']:.0f} % |"
    )


HEAD = """# Benchmarks

Measured, not promised: each number comes from a file in `benchmarks/results/`, which names machine
and versions; `python -m benchmarks.report` writes this page from them.
"""

REDUCTIONS = """## Reductions beside ATen

{gpu}, torch {torch}, driver {driver}. {method}.
`limit` is the input read once at 4.5 TB/s. ATen and ours are measured in turn, in one process.

Geometric mean over {count} cases: **{mean:.2f} times as fast as ATen**.
Losing (slower than 1/0.95 of ATen): {losing}.
Not there yet: {absent}.

| case | ATen µs | ours µs | ATen / ours | of the limit |
|---|---|---|---|---|
{cases}
"""

SUITE = """## The GPU suite

{suite[tests_collected]} tests, {suite[tests_failed]} failed, {suite[checks_passed]} checks of
(op, dtype, layout) on an {suite[device]}, in a process where Triton cannot be imported. The bundle
was built with Triton {suite[triton]} on a machine without a GPU.
`benchmarks/results/gpu-suite-h200.json` has the table. The layout tests also ran under
compute-sanitizer: memcheck found no error, and racecheck (sum, any and argmax of four dtypes) no hazard.
"""


def main() -> None:
    """Write the page and its pictures."""
    (DOCS / "benchmarks.md").write_text(document(), encoding="utf-8")
    IMAGES.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (IMAGES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
