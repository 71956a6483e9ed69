"""Bar charts as SVG, drawn with nothing but the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 860
LABELS = 250
BAR = 18
STEP = 26
OURS, OTHERS = "#2a7f62", "#9aa5b1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: what it is called, how long it is, whether it is ours."""

    label: str
    value: float
    ours: bool


def chart(title: str, groups: Sequence[tuple[str, Sequence[Bar]]], unit: str, *, log: bool = False) -> str:
    """Return an SVG of horizontal bars under a heading for each group; ``log``: equal lengths are equal
    factors, and the axis begins at a tenth of the smallest value."""
    values = [bar.value for _, bars in groups for bar in bars]
    low, high = min(values) / 10, max(values)

    def length(value: float) -> float:
        part = math.log(value / low) / math.log(high / low) if log else value / high
        return part * (WIDTH - LABELS - 110)

    body = []
    y = 44
    for heading, bars in groups:
        body.append(f'<text x="8" y="{y + 13}" font-weight="bold">{escape(heading)}</text>')
        y += STEP
        for bar in bars:
            colour = OURS if bar.ours else OTHERS
            end = LABELS + length(bar.value)
            body.append(
                f'<text x="{LABELS - 8}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>'
                f'<rect x="{LABELS}" y="{y}" width="{end - LABELS:.1f}" height="{BAR}" fill="{colour}"/>'
                f'<text x="{end + 6:.1f}" y="{y + 13}">{bar.value:.3g} {escape(unit)}</text>'
            )
            y += STEP
        y += 8
    note = " (logarithmic)" if log else ""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
        'font-family="sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{y}" fill="white"/>\n'
        f'<text x="8" y="24" font-size="16" font-weight="bold">{escape(title + note)}</text>\n'
    )
    return head + "\n".join(body) + "\n</svg>\n"
