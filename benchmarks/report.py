"""Writes docs/benchmarks.md from the results: ``python -m benchmarks.report > docs/benchmarks.md``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def read(name: str) -> Any:
    """One result file."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def document() -> str:
    """The page, every number of it from the result files."""
    speed, host, suite = read("reductions-h200.json"), read("dispatch-h200.json"), read("gpu-suite-h200.json")
    return PAGE.format(
        gpu=speed["machine"]["gpu"],
        torch=speed["machine"]["torch"],
        driver=speed["machine"]["driver"],
        method=speed["method"],
        count=len(speed["cases"]),
        mean=speed["geometric_mean_over_aten"],
        losing=", ".join(speed["losing"]) or "none",
        absent=", ".join(speed["absent"]),
        cases="\n".join(map(_row, speed["cases"])),
        host=host,
        paths="\n".join(f"| `{name}` | {value} |" for name, value in host["microseconds"].items()),
        suite=suite,
    )


def _row(case: Any) -> str:
    loses = " (loses)" if case["losing"] else ""
    return (
        f"| {case['name']} | {case['aten_us']:.1f} | {case['ours_us']:.1f} | {case['ratio']:.2f}{loses} "
        f"| {100 * case['of_limit']:.0f} % |"
    )


PAGE = """# Benchmarks

Measured, not promised: each number comes from a file in `benchmarks/results/`, which names machine
and versions; `python -m benchmarks.report` writes this page from them.

## Reductions beside ATen

{gpu}, torch {torch}, driver {driver}. {method}.
`limit` is the input read once at 4.5 TB/s. ATen and ours are measured in turn, in one process.

Geometric mean over {count} cases: **{mean:.2f} times as fast as ATen**.
Losing (slower than 1/0.95 of ATen): {losing}.
Not there yet: {absent}.

| case | ATen µs | ours µs | ATen / ours | of the limit |
|---|---|---|---|---|
{cases}

## Host time of a call

{host[what]}; {host[device]}, torch {host[torch]}, Triton {host[triton_jit]}, cuda-bindings
{host[cuda_bindings]}. A launch goes through Python today: what is slower than its rival here is so
for that reason, and a native launcher is what comes next.

| path | µs |
|---|---|
{paths}

## The GPU suite

{suite[tests_collected]} tests, {suite[tests_failed]} failed, {suite[checks_passed]} checks of
(op, dtype, layout) on an {suite[device]}, in a process where Triton cannot be imported. The bundle
was built with Triton {suite[triton]} on a machine without a GPU.
`benchmarks/results/gpu-suite-h200.json` has the table. The layout tests also ran under
compute-sanitizer: memcheck found no error, and racecheck (sum, any and argmax of four dtypes) no hazard.
"""


if __name__ == "__main__":
    print(document(), end="")
