"""The page's sections on cold start and on the soak, from results of those two."""

from __future__ import annotations

from typing import Any

from benchmarks import goals
from benchmarks.pictures import Bar, chart
from benchmarks.prose import prose

MEMORY = {"rss": "process (RSS)", "device": "device", "torch": "torch's allocator"}
PICTURE = "cold-start.svg"


def _median(result: Any, probe: str, name: str) -> float:
    return float(result["probes"][probe][name]["median"])


def cold_start(result: Any) -> str:
    """Times from a fresh process, beside the goals and Triton's JIT."""
    bundle, versions = result["bundle"], result["versions"]
    lines = [
        "## Cold start\n",
        prose(f"""
            {result["what"]}, on an {result["device"]}; torch {versions["torch"]}, Triton
            {versions["triton"]}. The large bundle has {bundle["variants"]:,} variants of
            {bundle["kernels"]} kernels in {bundle["tables"]:,} tables, {bundle["bytes"] / 1e6:.1f}
            MB. {result.get("note", "")}
        """),
        goals.HEAD + "\n".join(goal.row() for goal in goals.of_cold_start(result)) + "\n",
        prose("""
            What the loaded kernels take is measured by loading the same cubins with the driver alone,
            through ctypes; the memory goal is the difference.
        """),
        "| in a fresh process | ms |",
        "|---|---|",
    ]
    for what, probe, name in (
        ("`import aot`, without torch", "import_alone", "import aot"),
        ("`import aot`, after torch", "import_after_torch", "import aot"),
        ("`aot.open`, the first", "import_after_torch", "open"),
        ("`aot.open`, the second", "import_after_torch", "open again"),
        ("`import aot.ops`, after both", "import_after_torch", "import aot.ops"),
        ("first call of an operation, returned", "first_op", "first call returned"),
        ("first call of an operation, finished", "first_op", "first call finished"),
        ("first call of another operation, finished", "first_op", "another call finished"),
        ("the same call again", "first_op", "another call again"),
        ("`bundle.preload` of 500 cubins", "preload", "preload"),
        ("the same cubins through the driver alone", "bare_load", "load"),
    ):
        lines.append(f"| {what} | {_median(result, probe, name):.2f} |")
    lines += [
        "",
        prose("""
            The first call of one kernel of 19 arguments, until its result is there, with torch's CUDA
            up, and Triton imported or the bundle open:
        """),
        f"![First call of a kernel](images/{PICTURE})\n",
        "| first call | ms |",
        "|---|---|",
        *(f"| {bar.label} | {bar.value:.2f} |" for bar in _first_kernel(result)),
        "",
        "| memory grown by | RSS, MB | PSS, MB |",
        "|---|---|---|",
    ]
    for what, probe in (
        ("`import aot`, `aot.open`, `preload`", "preload"),
        ("the driver alone", "bare_load"),
    ):
        rss, pss = (_median(result, probe, f"{kind} grown") / 1e6 for kind in ("Rss", "Pss"))
        lines.append(f"| {what} | {rss:.1f} | {pss:.1f} |")
    return "\n".join(lines) + "\n"


def _first_kernel(result: Any) -> list[Bar]:
    name = "first call finished"
    return [
        Bar(label="aot", value=_median(result, "first_kernel", name), ours=True),
        Bar(label="Triton's JIT, its disk cache warm", value=_median(result, "jit_warm", name), ours=False),
        Bar(label="Triton's JIT, its disk cache empty", value=_median(result, "jit_cold", name), ours=False),
    ]


def pictures(result: Any) -> dict[str, str]:
    """The picture of the cold start, by file name."""
    groups = [("A kernel of 19 arguments", _first_kernel(result))]
    return {PICTURE: chart("First call in a fresh process", groups, "ms", log=True)}


def _verdict(result: Any) -> str:
    """Whether memory was flat, and what was not."""
    grown = [
        f"{name} by {part[kind]['grown'] / 1e6:.1f} MB"
        for part in (result["memory"], result["reopened"])
        for kind, name in MEMORY.items()
        if part[kind]["grown"] > result["slack"]
    ]
    return f"**Not flat: {', '.join(grown)}.**" if grown else "**Memory was flat.**"


def soak(result: Any) -> str:
    """What ran, and what it left."""
    memory, reopened = result["memory"], result["reopened"]
    lines = [
        "## Soak\n",
        prose(f"""
            {result["calls"]:,} calls from {result["threads"] - 1} threads, each on a stream of its
            own, in {result["seconds"]:g} s on an {result["device"]}: {result["cases"]} cases of
            {result["ops"]} ops, {result["dtypes"]} dtypes and {result["layouts"]} layouts, parts of
            them with new shapes, prepared calls with and without `out=`, and a kernel. They launched
            {result["launches"]:,} prebuilt kernels. Beside them one thread replayed a graph
            {result["replays"]:,} times over changing data ({result["replayed_launches"]:,} launches).
            {result["checked"]:,} calls and every replay were compared with the right answer, for
            equality: **{result["wrong"]} elements were wrong, {len(result["errors"])} threads
            failed**.
        """),
        prose(f"""
            Afterwards a bundle was opened, preloaded whole and closed {result["reopenings"]} times. Growth
            of less than {result["slack"] / 1e6:.0f} MB counts as none: allocators grow in steps.
            {_verdict(result)} {result.get("note", "")}
        """),
        "| memory in use, MB | second quarter | last quarter | after reopening twice | after the last |",
        "|---|---|---|---|---|",
    ]
    for kind, name in MEMORY.items():
        numbers = [part[kind][when] / 1e6 for part in (memory, reopened) for when in ("early", "late")]
        lines.append(f"| {name} | {' | '.join(f'{number:.1f}' for number in numbers)} |")
    return "\n".join(lines) + "\n"
