"""Tables, progress and JSON on the terminal, or plain lines where there is none."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()) -> None:
    """Print rows under headers, the columns of ``numbers`` (their positions) flush right."""
    right = set(numbers)
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for position, header in enumerate(headers):
        shown.add_column(header, justify="right" if position in right else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*map(str, row))
    # Without a terminal the reader is a file or a program: lines must not be cut to 80 columns.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 100_000)
    console.print(shown)


def print_json(value: Any) -> None:
    """Print a value as JSON, one document, keys in the order given."""
    # ASCII only: a path may hold what the locale, or UTF-8, cannot write.
    print(json.dumps(value, indent=1))


def matrix(counts: Mapping[tuple[str, str], int]) -> None:
    """Print counts by (row, column) with totals: op × dtype."""
    columns = list(dict.fromkeys(column for _, column in counts))
    rows: Counter[str] = Counter()
    for (row, _), count in counts.items():
        rows[row] += count
    table(
        ["dtype", *rows, "all"],
        [
            *(
                [
                    column,
                    *(counts.get((row, column), 0) or "-" for row in rows),
                    sum(counts.get((row, column), 0) for row in rows),
                ]
                for column in columns
            ),
            ["all", *rows.values(), sum(rows.values())],
        ],
        numbers=range(1, len(rows) + 2),
    )


def size(count: int) -> str:
    """A number of bytes for people, in units of 1000."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


class BuildProgress:
    """One bar on stderr, or a plain line every few seconds where stderr is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None
        self._last = time.monotonic()
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("compiling"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("compiling", total=None)

    def __enter__(self) -> BuildProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, done: int, total: int, job: object, result: object) -> None:
        """Count one finished job."""
        if self._bar:
            self._bar.update(self._task, completed=done, total=total)
        elif not self._quiet and (done == total or time.monotonic() - self._last >= 5):
            self._last = time.monotonic()
            print(f"compiled {done} of {total}", file=sys.stderr)
