"""Every reduction kernel, operation and dtype, for each class of layout, against exact answers."""

from __future__ import annotations

import pytest
import torch
from interp import COMPLEX, F8, FLOATS, INTS, Geometry, Tiles, run_arg, run_reduce
from reference import expected, expected_arg, same_bits, sample

pytestmark = [pytest.mark.interpreter, pytest.mark.filterwarnings("ignore:ComplexHalf support")]

SUM_IO = (
    *((d, d) for d in (*FLOATS, *F8, *COMPLEX)),
    *((d, "int64") for d in INTS),
    *((d, "float32") for d in ("float16", "bfloat16", *F8)),
    ("complex32", "complex64"),
)
ORDERED = (*FLOATS, *INTS, *F8)
CASES = (
    *(("sum", *io) for io in SUM_IO),
    *(("prod", *io) for io in SUM_IO),
    *((op, d, d) for op in ("amax", "amin") for d in ORDERED),
    *(
        (op, d, "uint8" if d == "uint8" else "bool")
        for op in ("any", "all")
        for d in (*FLOATS, *INTS, *F8, *COMPLEX)
    ),
)
ARG_CASES = tuple((op, d) for op in ("argmax", "argmin") for d in ORDERED)

# name: shape, and how a tile and the splits lie over it.
ROWS = {
    "short rows": ((6, 5), Tiles(out=4, red=8)),
    "long rows": ((2, 45), Tiles(out=1, red=16)),
    "one full tile": ((1, 16), Tiles(out=1, red=16)),
    "split": ((3, 200), Tiles(out=2, red=16, n_splits=4, split=64)),
    "an empty split": ((1, 64), Tiles(out=1, red=16, n_splits=3, split=64)),
    "a thread a row": ((6, 5), Tiles(out=4, red=1, unroll=4)),
    "a tail of vectors and more": ((2, 57), Tiles(out=1, red=32, vector=8, unroll=2)),
    "less than a vector": ((2, 5), Tiles(out=1, red=32, vector=8)),
}
COLS = {
    "whole": Tiles(out=8, red=8, unroll=2),
    "a thread a column": Tiles(out=8, red=1, unroll=4),
    "split": Tiles(out=8, red=4, n_splits=3, split=8),
}
STRIDED = {
    "whole": Tiles(out=8, red=8),
    "split": Tiles(out=8, red=4, n_splits=3, split=8),
}


def sliced(x: torch.Tensor) -> torch.Tensor:
    """The same rows, three elements further apart, and not where storage starts."""
    wide = torch.zeros(x.size(0) + 1, x.size(1) + 3, dtype=x.dtype)
    wide[1:, : x.size(1)] = x
    return wide[1:, : x.size(1)]


def element_at(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """The element of each row in that column; a bool is whatever is not zero."""
    found = torch.stack([row[column] for row, column in zip(rows, columns, strict=True)])
    return found.view(torch.uint8) != 0 if found.dtype == torch.bool else found


def label(case: object) -> str:
    return "-".join(case) if isinstance(case, tuple) else str(case)


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("case", CASES, ids=label)
def test_rows(case: tuple[str, str, str], layout: str) -> None:
    """Bit for bit the exact answer, rounded once."""
    op, dtype, out = case
    shape, tiles = ROWS[layout]
    x = sliced(sample(op, dtype, shape))
    found = run_reduce(op, x, Geometry.rows(x), out, tiles=tiles)
    assert same_bits(found, expected(op, x, out)), (found, expected(op, x, out))


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize("case", CASES, ids=label)
def test_strided(case: tuple[str, str, str], layout: str) -> None:
    """Three kept and two reduced dims, no two of them neighbours in memory."""
    op, dtype, out = case
    x = sample(op, dtype, (4, 5, 2, 3, 2)).permute(2, 3, 0, 4, 1)
    found = run_reduce(op, x, Geometry.strided(x, (2, 4)), out, tiles=STRIDED[layout])
    wanted = expected(op, x.permute(0, 1, 3, 2, 4).reshape(12, 20), out)
    assert same_bits(found, wanted), (found, wanted)


def columns(op: str, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor [2, 20, 12] with gaps between its rows, and the same elements as 24 rows of 20."""
    rows = sample(op, dtype, (24, 20))
    wide = torch.zeros(3, 20, 15, dtype=rows.dtype)
    wide[1:, :, :12] = rows.view(2, 12, 20).transpose(1, 2)
    return wide[1:, :, :12], rows


@pytest.mark.parametrize("layout", COLS)
@pytest.mark.parametrize("case", CASES, ids=label)
def test_cols(case: tuple[str, str, str], layout: str) -> None:
    """Inner and outer kept dims around the reduced one; tiles past the inner end, and tails."""
    op, dtype, out = case
    x, rows = columns(op, dtype)
    found = run_reduce(op, x, Geometry.cols(x), out, tiles=COLS[layout])
    assert same_bits(found, expected(op, rows, out)), (found, expected(op, rows, out))


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("case", ARG_CASES, ids=label)
def test_arg_rows(case: tuple[str, str], layout: str) -> None:
    """The first best index, and the very element that is there."""
    op, dtype = case
    shape, tiles = ROWS[layout]
    x = sliced(sample(op, dtype, shape))
    values, indices = run_arg(op, x, Geometry.rows(x), tiles=tiles)
    wanted = expected_arg(op, x)
    assert torch.equal(indices, wanted)
    assert same_bits(values, element_at(x, wanted))


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize("case", ARG_CASES, ids=label)
def test_arg_strided(case: tuple[str, str], layout: str) -> None:
    """The index counts through the reduced dims in their order, whatever their strides."""
    op, dtype = case
    x = sample(op, dtype, (4, 5, 2, 3, 2)).permute(2, 3, 0, 4, 1)
    rows = x.permute(0, 1, 3, 2, 4).reshape(12, 20)
    values, indices = run_arg(op, x, Geometry.strided(x, (2, 4)), tiles=STRIDED[layout])
    wanted = expected_arg(op, rows)
    assert torch.equal(indices, wanted)
    assert same_bits(values, element_at(rows, wanted))


@pytest.mark.parametrize("layout", COLS)
@pytest.mark.parametrize("case", ARG_CASES, ids=label)
def test_arg_cols(case: tuple[str, str], layout: str) -> None:
    op, dtype = case
    x, rows = columns(op, dtype)
    values, indices = run_arg(op, x, Geometry.cols(x), tiles=COLS[layout])
    wanted = expected_arg(op, rows)
    assert torch.equal(indices, wanted)
    assert same_bits(values, element_at(rows, wanted))


@pytest.mark.parametrize(("dtype", "value"), [("int8", -128), ("uint8", 255), ("bool", True)])
def test_sums_of_bytes_are_exact(dtype: str, value: int) -> None:
    """Lanes of 32 bits hold them: the worst values, in rows and in columns."""
    x = torch.full((2, 3000), value, dtype=getattr(torch, dtype))
    found = run_reduce("sum", x, Geometry.rows(x), "int64", tiles=Tiles(out=1, red=64, vector=16, unroll=2))
    assert found.tolist() == [3000 * int(value)] * 2
    tall = torch.full((1, 500, 16), value, dtype=getattr(torch, dtype))
    found = run_reduce("sum", tall, Geometry.cols(tall), "int64", tiles=Tiles(out=16, red=8, unroll=2))
    assert found.tolist() == [500 * int(value)] * 16
