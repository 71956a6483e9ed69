"""The page's section on host time, from a result of ``benchmarks.dispatch``."""

from __future__ import annotations

from typing import Any

from benchmarks import goals
from benchmarks.pictures import Bar, chart
from benchmarks.prose import prose

PICTURE = "host-time.svg"
TITLES = {
    "sum": "Sum of the rows of a [64, 1000] fp32 tensor",
    "sum_rows": "A reduction with two tensors: 4 arguments",
    "rms_norm": "A fused RMSNorm: 9 arguments",
    "add_products": "An elementwise kernel: 19 arguments",
}
WHO = {
    "eager": "eager torch",
    "eager-out": "eager torch, `out=`",
    "jit": "Triton's JIT",
    "core": "cuda.core",
    "tvm": "tvm-ffi",
    "op": "aot, operation",
    "op-out": "aot, operation, `out=`",
    "held": "aot, held call",
    "held-out": "aot, held call, `out=`",
    "aot": "aot, `kernel[grid](…)`",
    "bare": "bare loop in C",
    "bare-kernel": "bare loop in C, CUkernel",
}
OURS = ("op", "op-out", "held", "held-out", "aot")


def section(result: Any) -> str:
    """Tables beside the rivals and the goals."""
    versions = result["versions"]
    parts = [
        "## Host time of a call\n",
        prose(f"""
            Host microseconds for one call, {result["what"]}, on an {result["device"]}; torch
            {versions["torch"]}, Triton {versions["triton"]}, cuda.core {versions["cuda-core"]},
            tvm-ffi {versions["apache-tvm-ffi"]}, cuda-bindings {versions["cuda-bindings"]}, Python
            {versions["python"]}.
        """),
        prose("""
            All paths of a table launch the same cubin with the same arguments, except eager torch,
            which has a kernel of its own, and the JIT, which compiles the same source. The paths take
            turns, a batch each. cuda.core and tvm-ffi get numbers, configuration and stream ready
            made where their interface allows it. Pure Python is the same call of ours with
            `AOT_NATIVE=0`.
        """),
        f"![Host time of a call](images/{PICTURE})\n",
        goals.HEAD + "\n".join(goal.row() for goal in goals.of_calls(result)) + "\n",
    ]
    if result["absent"]:
        reasons = "; ".join(f"{who} ({reason})" for who, reason in result["absent"].items())
        parts.append(prose(f"Not measured: {reasons}."))
    for name, rows in result["sections"].items():
        parts.append(f"### {TITLES[name]}\n\n{_table(rows, result['pure_python']['sections'][name])}\n")
    parts.append(_shapes(result))
    return "\n".join(parts)


def _table(rows: Any, python: Any) -> str:
    slow = {row["key"]: row["us"] for row in python}
    bare = next((row["us"] for row in rows if row["key"] == "bare"), None)
    lines = ["| path | code | µs | of bare | pure Python, µs |", "|---|---|---|---|---|"]
    for row in rows:
        code = "" if row["key"].startswith("bare") else f"`{row['path']}`"
        of_bare = "" if bare is None else f"{row['us'] / bare:.2f}"
        pure = f"{slow[row['key']]:.2f}" if row["key"] in slow else ""
        lines.append(f"| {WHO[row['key']]} | {code} | {row['us']:.2f} | {of_bare} | {pure} |")
    return "\n".join(lines)


def _shapes(result: Any) -> str:
    lines = [
        "### Shapes that were not seen before\n",
        prose(f"""
            The first call of a shape finds nothing prepared: the median of 300 shapes, each call
            timed alone with the GPU idle, every cubin loaded. A caller whose shapes never repeat pays
            it at every call; that row is the mean of {result["churn"][0]["shapes"]:,} calls, more
            than any cache here keeps, and every 50th result is compared with torch's in fp64.
        """),
        "| call | µs | pure Python, µs |",
        "|---|---|---|",
    ]
    python = {row["path"]: row["us"] for row in result["pure_python"]["first_calls"]}
    for row in result["first_calls"]:
        pure = f"{python[row['path']]:.1f}" if row["path"] in python else ""
        lines.append(f"| first: `{row['path']}` | {row['us']:.1f} | {pure} |")
    python = {row["path"]: row["us"] for row in result["pure_python"]["churn"]}
    for row in result["churn"]:
        pure = f"{python[row['path']]:.1f}" if row["path"] in python else ""
        lines.append(f"| never the same: `{row['path']}`, {row['wrong']} wrong | {row['us']:.1f} | {pure} |")
    return "\n".join(lines) + "\n"


def pictures(result: Any) -> dict[str, str]:
    """The picture of the section, by file name."""
    groups = [
        (
            TITLES[name],
            [
                Bar(label=WHO[row["key"]].replace("`", ""), value=row["us"], ours=row["key"] in OURS)
                for row in rows
            ],
        )
        for name, rows in result["sections"].items()
    ]
    return {PICTURE: chart("Host time of one call", groups, "µs")}
