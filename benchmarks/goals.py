"""What the launch path and the cold start are held to, and whether a result meets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """``found`` is at most ``wanted`` where the goal is met; None where it could not be measured."""

    what: str
    found: float | None
    wanted: float
    unit: str

    @property
    def met(self) -> bool | None:
        """Whether it is met."""
        return None if self.found is None else self.found <= self.wanted

    def row(self) -> str:
        """A row of a Markdown table."""
        found = "-" if self.found is None else f"{self.found:.2f}{self.unit}"
        verdict = {True: "yes", False: "**no**", None: "not measured"}[self.met]
        return f"| {self.what} | {self.wanted:g}{self.unit} | {found} | {verdict} |"


# The head of the table of goals.
HEAD = "| goal | at most | found | met |\n|---|---|---|---|\n"


def of_calls(result: Any) -> list[Goal]:
    """The goals of a launch, from a result of ``benchmarks.dispatch``."""
    times = {(section, row["key"]): row["us"] for section, rows in result["sections"].items() for row in rows}

    def ratio(section: str, ours: str, other: str) -> float | None:
        found, beside = times.get((section, ours)), times.get((section, other))
        return None if found is None or beside is None else found / beside

    wanted = (
        ("`aot.ops.sum(x, -1)` / eager `torch.sum(x, -1)`", "sum", "op", "eager", 0.8),
        ("held call, output allocated / eager", "sum", "held", "eager", 0.55),
        ("held call with `out=` / bare `cuLaunchKernel`", "sum", "held-out", "bare", 1.2),
        ("`kernel[grid](…)`, 19 arguments / Triton's JIT", "add_products", "aot", "jit", 0.35),
        ("`kernel[grid](…)`, 19 arguments / cuda.core", "add_products", "aot", "core", 1.0),
    )
    return [
        Goal(what=what, found=ratio(section, ours, other), wanted=most, unit="")
        for what, section, ours, other, most in wanted
    ]


def of_cold_start(result: Any) -> list[Goal]:
    """The goals of a cold start, from a result of ``benchmarks.cold_start``."""
    probes = result["probes"]

    def median(probe: str, name: str) -> float:
        return float(probes[probe][name]["median"])

    beyond = (median("preload", "Pss grown") - median("bare_load", "Pss grown")) / 1e6
    return [
        Goal(
            what="`import aot` after torch",
            found=median("import_after_torch", "import aot"),
            wanted=5,
            unit=" ms",
        ),
        Goal(
            what=f"`aot.open` of {result['bundle']['variants']:,} variants, imports included",
            found=median("import_after_torch", "open"),
            wanted=5,
            unit=" ms",
        ),
        Goal(
            what="first call, CUDA being up, result on the GPU",
            found=median("first_op", "first call finished"),
            wanted=1,
            unit=" ms",
        ),
        Goal(
            what=f"`bundle.preload` of {median('preload', 'loaded'):g} cubins",
            found=median("preload", "preload"),
            wanted=200,
            unit=" ms",
        ),
        Goal(what="memory beyond the loaded kernels (PSS)", found=beyond, wanted=10, unit=" MB"),
    ]
