"""How many programs share one reduction, when there are few outputs and much to read. Pure.

Each split reduces a run of the elements of every output to a partial result; the last
program of an output tile merges the partials in the order of their index. The numbers
depend on the extents and the device alone, so a call gives the same bits every time.
"""

from __future__ import annotations

from dataclasses import dataclass

# Split sizes are multiples of this many elements: every split but the last is whole
# vectors, and a row that starts on a 16-byte boundary has splits that do.
QUANTUM = 64

# A kernel counts inside a split with 32 bits.
MAX_SPLIT = 2**31 - QUANTUM

# The splits are the second dimension of the grid.
MAX_SPLITS = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPolicy:
    """The numbers to tune, for one device.

    ``processors``: its streaming multiprocessors. ``programs``: programs for each of them
    that keep it busy. ``rows`` and ``columns``: outputs that one program of the rows and of
    the strided kernels is taken to hold. ``min_split``: elements that make a split worth its
    merge. ``max_splits``: partials of one output that a program merges in little time.
    """

    processors: int
    programs: int = 8
    rows: int = 1
    columns: int = 64
    min_split: int = 4096
    max_splits: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """``count`` splits of ``size`` elements; the last may be shorter but is never empty."""

    count: int
    size: int


def splits(n_out: int, n_red: int, *, rows: bool, policy: SplitPolicy) -> Splits:
    """Return the splits of ``n_out`` reductions of ``n_red`` elements each.

    ``rows`` says which layout's kernel runs. Raises ``ValueError`` for more than 2**47
    elements an output, which no grid can hold.
    """
    tiles = max(1, _cdiv(n_out, policy.rows if rows else policy.columns))
    wanted = _cdiv(policy.processors * policy.programs, tiles)
    # Below one program for each processor there is room; above, a split only adds a merge.
    if tiles >= policy.processors:
        wanted = 1
    count = max(1, min(wanted, n_red // policy.min_split, policy.max_splits), _cdiv(n_red, MAX_SPLIT))
    if count > MAX_SPLITS:
        raise ValueError(f"found {n_red} elements for one output, wanted at most {MAX_SPLITS * MAX_SPLIT}")
    size = max(QUANTUM, _cdiv(_cdiv(n_red, count), QUANTUM) * QUANTUM)
    return Splits(count=max(1, _cdiv(n_red, size)), size=size)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
