"""How many programs share one reduction, when there are few outputs and much to read. Pure.

Each split reduces a run of the elements of every output to a partial result; the last
program of an output tile merges the partials in the order of their index. The numbers
depend on the extents and the device alone, so a call gives the same bits every time.
"""

from __future__ import annotations

from msgspec import Struct

from aot.loader.ops.geometry import Layout

# Split sizes are multiples of this many elements: every split but the last is whole
# vectors, and a row that starts on a 16-byte boundary has splits that do.
QUANTUM = 64

# The most elements of an output that a program of the rows and cols kernels takes: a 32-bit
# lane holds the sum of so many bytes. The strided kernels only count them in 32 bits.
MAX_SPLIT = 2**23
MAX_STRIDED_SPLIT = 2**31 - QUANTUM

# The splits are the second dimension of the grid.
MAX_SPLITS = 65535


class SplitPolicy(Struct, frozen=True, kw_only=True):
    """The numbers to tune, for one device.

    ``processors``: its streaming multiprocessors. ``programs``: programs for each of them
    that keep it busy in the rows kernels, ``column_programs`` in the others. ``rows`` and
    ``columns``: outputs that one program of the rows and of the other kernels is taken to
    hold. ``min_split``: elements that make a split worth its merge; ``min_busy_split`` the same
    where outputs alone give every processor a program. ``max_splits``: partials of one output
    that a program merges in little time.
    """

    processors: int
    programs: int = 4
    column_programs: int = 8
    rows: int = 1
    columns: int = 64
    min_split: int = 4096
    min_busy_split: int = 16384
    max_splits: int = 2048


class Splits(Struct, frozen=True, kw_only=True):
    """``count`` splits of ``size`` elements; the last may be shorter but is never empty."""

    count: int
    size: int


def splits(
    n_out: int, n_red: int, *, layout: Layout, policy: SplitPolicy, n_inner: int | None = None
) -> Splits:
    """Return the splits of ``n_out`` reductions of ``n_red`` elements each.

    ``layout`` says which kernel runs; for ``cols`` no program's outputs span two runs of
    ``n_inner`` of them. Raises ``ValueError`` for more elements an output than a grid can hold.
    """
    width = policy.rows if layout == "rows" else policy.columns
    run = n_out if n_inner is None else n_inner
    tiles = max(1, n_out // max(run, 1) * _cdiv(run, width))
    busy = tiles >= policy.processors
    if layout == "rows":
        wanted = _cdiv(policy.processors * policy.programs, tiles)
        worth = n_red // (policy.min_busy_split if busy else policy.min_split)
    elif layout == "cols":
        # A program reduces several columns: a split of few elements each is work enough.
        wanted = policy.processors * policy.column_programs // tiles
        worth = n_red // max(1, policy.min_split // width)
    else:
        # Below one program for each processor there is room; above, a split only adds a merge.
        wanted = 1 if busy else _cdiv(policy.processors * policy.column_programs, tiles)
        worth = n_red // policy.min_split
    most = MAX_STRIDED_SPLIT if layout == "strided" else MAX_SPLIT
    count = max(1, min(wanted, worth, policy.max_splits), _cdiv(n_red, most))
    if count > MAX_SPLITS:
        raise ValueError(f"found {n_red} elements for one output, wanted at most {MAX_SPLITS * most}")
    size = max(QUANTUM, _cdiv(_cdiv(n_red, count), QUANTUM) * QUANTUM)
    return Splits(count=max(1, _cdiv(n_red, size)), size=size)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
