"""``aot.ops`` from the call to the Triton kernel, under the interpreter, against torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import interp
import op_inputs
import opinfo_cases
import pytest
import torch

import aot
from aot.dtypes import DTYPES
from aot.kernel_specs.reductions import argreduce, reduce
from aot.loader.ops.backend import use_backend
from aot.loader.ops.splits import SplitPolicy

pytestmark = [pytest.mark.interpreter, pytest.mark.filterwarnings("ignore:ComplexHalf support")]

# Tiles so small that small inputs take several of them, and wide ones for calls with many outputs,
# because the interpreter's time goes to programs.
SMALL = {"BLOCK_ROWS": 4, "BLOCK_COLS": 32, "BLOCK_OUT": 8, "BLOCK_RED": 16, "VECTOR": 16, "UNROLL": 2}
WIDE = {"BLOCK_ROWS": 64, "BLOCK_COLS": 32, "BLOCK_OUT": 64, "BLOCK_RED": 16, "VECTOR": 1, "UNROLL": 1}
NAMES = {
    "rows": ("BLOCK_ROWS", "BLOCK_COLS", "VECTOR", "UNROLL"),
    "cols": ("BLOCK_OUT", "BLOCK_RED", "UNROLL"),
    "strided": ("BLOCK_OUT", "BLOCK_RED"),
}
MANY_PROGRAMS = 4
KERNELS = {
    "reduce_rows": reduce.reduce_rows,
    "reduce_cols": reduce.reduce_cols,
    "reduce_strided": reduce.reduce_strided,
    "argreduce_rows": argreduce.argreduce_rows,
    "argreduce_cols": argreduce.argreduce_cols,
    "argreduce_strided": argreduce.argreduce_strided,
}


@dataclass
class InterpreterBackend:
    """Runs the Triton functions on CPU tensors, with small tiles and splits of 64 elements or more."""

    device_type: str = "cpu"
    split: SplitPolicy = field(
        default_factory=lambda: SplitPolicy(processors=2, programs=2, min_split=64, columns=4)
    )
    tiles: dict[str, int] | None = None
    launches: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def policy(self, device: torch.device) -> SplitPolicy:
        return self.split

    def stream(self, device: torch.device) -> Hashable | None:
        return 0

    def kernel(self, name: str) -> _Kernel:
        return _Kernel(self, name)


@dataclass
class _Kernel:
    backend: InterpreterBackend
    name: str

    def __getitem__(self, grid: Callable[[Mapping[str, Any]], tuple[int, ...]]) -> Callable[..., None]:
        names = NAMES[self.name.split("_")[1]]

        def call(*args: Any, **constexprs: str) -> None:
            tiles = self.backend.tiles or SMALL
            if tiles is SMALL and grid({**SMALL, **constexprs})[0] > MANY_PROGRAMS:
                tiles = WIDE
            blocks = {name: tiles[name] for name in names}
            sizes = grid({**blocks, **constexprs})
            self.backend.launches.append((self.name, sizes))
            lanes = [interp.as_lanes(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
            KERNELS[self.name][sizes](*lanes, **constexprs, **blocks)

        return call


@pytest.fixture(autouse=True)
def backend() -> Iterator[InterpreterBackend]:
    found = InterpreterBackend()
    with use_backend(found):
        yield found


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call returns, or the exception that it raises."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return error


def compare(op: str, x: torch.Tensor, kwargs: dict[str, Any], label: str) -> None:
    wanted = outcome(op_inputs.expected, op, x, **kwargs)
    found = outcome(getattr(aot.ops, op), x, **kwargs)
    if isinstance(wanted, Exception):
        assert type(found) is type(wanted), f"{label}: {found!r}"
    else:
        assert not isinstance(found, Exception), f"{label}: {found!r}"
        op_inputs.check(found, wanted, label)


@pytest.mark.parametrize(("op", "variant"), opinfo_cases.OPS)
def test_torchs_own_samples(op: str, variant: str) -> None:
    """PyTorch's OpInfo samples, for one floating and one other dtype that the operation takes."""
    taken = opinfo_cases.dtypes_of(op, variant, "cpu")
    dtypes = [torch.float32, torch.complex64 if torch.complex64 in taken else torch.int64]
    for case in opinfo_cases.cases(op, variant, "cpu", dtypes):
        expected = outcome(case.expected)
        found = outcome(getattr(aot.ops, op), case.input, *case.args, **case.kwargs)
        if isinstance(expected, Exception):
            assert type(found) is type(expected), case.label
        else:
            assert not isinstance(found, Exception), f"{case.label}: {found!r}"
            op_inputs.check(found, expected, case.label)


@pytest.mark.parametrize("op", op_inputs.OPS)
def test_every_layout(op: str) -> None:
    """Field cases A15, A16, A28 to A34."""
    for layout, x in op_inputs.layouts("float32").items():
        for kwargs in op_inputs.calls(op, x):
            compare(op, x, kwargs, f"{op} {layout} {kwargs}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", op_inputs.OPS)
def test_every_dtype(op: str, dtype: str) -> None:
    """Field cases A10, A12, A13, A22: rows, columns and splits of every dtype."""
    if not op_inputs.serves(op, dtype):
        return
    made = op_inputs.layouts(dtype)
    for layout, dim in (("sliced", 0), ("misaligned", -1), ("long row", None), ("0-d", None)):
        kwargs = {} if dim is None else {"dim": dim}
        compare(op, made[layout], kwargs, f"{op} {dtype} {layout} {kwargs}")


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        ("float16", torch.float32),
        ("bfloat16", torch.float32),
        ("float8_e4m3fn", torch.float32),
        ("float8_e5m2", torch.float64),
        ("complex32", torch.complex64),
        ("int8", torch.float32),
        ("float32", torch.int32),
        ("bool", torch.bool),
        ("float32", torch.bool),
    ],
)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_dtype_argument(op: str, source: str, dtype: torch.dtype) -> None:
    x = op_inputs.make((5, 70), source, seed=4)
    if source == "int8":
        x = x.clamp(-2, 2)
    wide = x.to(torch.float32) if source.startswith("float8") else x
    wide = wide.to(torch.complex64) if source == "complex32" else wide
    op_inputs.check(
        getattr(aot.ops, op)(x, 1, dtype=dtype), getattr(torch, op)(wide, 1, dtype=dtype), f"{source} {dtype}"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nan_wins(dtype: str) -> None:
    """Field case A01: first, last, in the middle, in the ragged last block, in each split."""
    for at in (0, 500, 999):
        x = torch.full((3, 1000), float("inf"), dtype=getattr(torch, dtype))
        x[1, at] = float("nan")
        assert aot.ops.amax(x, 1).isnan().tolist() == [False, True, False]
        assert aot.ops.amin(x.T.contiguous(), 0).isnan().tolist() == [False, True, False]
        assert aot.ops.amin(x).isnan()
        assert aot.ops.argmax(x).item() == 1000 + at
        values, indices = aot.ops.min(x, 1)
        assert values.isnan().tolist() == [False, True, False]
        assert indices.tolist() == [0, at, 0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "float8_e5m2"])
def test_signed_zeros(dtype: str) -> None:
    """Field case A03: the positive zero is the larger one, whatever the order, split or layout;
    with a dimension the value is that of the first index."""
    for zeros in ([-0.0, 0.0], [0.0, -0.0], [-0.0, 0.0] * 300):
        x = torch.tensor([zeros, zeros]).to(getattr(torch, dtype))
        for view, dim in ((x, 1), (x.T.contiguous(), 0)):
            assert not aot.ops.amax(view, dim).float().signbit().any()
            assert aot.ops.amin(view, dim).float().signbit().all()
            for op in ("max", "min"):
                values, indices = getattr(aot.ops, op)(view, dim)
                assert indices.tolist() == [0, 0]
                assert torch.equal(values.float().signbit(), x[:, 0].float().signbit())
        assert not aot.ops.max(x).float().signbit()
        assert aot.ops.min(x).float().signbit()


@pytest.mark.parametrize("dtype", ["int64", "uint8", "uint32", "uint64", "bool", "float32", "float8_e4m3fn"])
def test_ties_take_the_first_index(dtype: str) -> None:
    """Field cases A02, A14, A32: across tiles and splits, for data that equals the identity."""
    wanted = getattr(torch, dtype)
    for op in ("argmax", "argmin"):
        found = getattr(aot.ops, op)
        assert found(torch.zeros(1, 2001).to(wanted), 1).item() == 0
        assert found(torch.zeros(201, 3).to(wanted), 0).tolist() == [0, 0, 0]
        assert found(torch.zeros(40, 1).to(wanted), 1).tolist() == [0] * 40
        assert found(torch.ones(16).to(wanted)).item() == 0
    assert aot.ops.argmax(torch.tensor([[2, 3, 0, 3, 3], [1, 3, 1, 3, 1]]).to(torch.int64), 1).tolist() == [
        1,
        1,
    ]


@pytest.mark.parametrize("size", [20, 33, 130])
def test_identity_values_keep_their_index(size: int) -> None:
    """Field cases A14, A15: the padding of the last block never wins."""
    for x, op in (
        (torch.full((3, size), float("-inf")), "argmax"),
        (torch.full((3, size), float("inf")), "argmin"),
        (torch.full((3, size), -(2**63)), "argmax"),
        (torch.full((3, size), 2**63 - 1), "argmin"),
        (torch.full((3, size), 2**31 - 1, dtype=torch.int32), "argmin"),
    ):
        assert getattr(aot.ops, op)(x, 1).tolist() == [0, 0, 0]
        assert getattr(aot.ops, op)(x.T, 0).tolist() == [0, 0, 0]
    positive = torch.rand(3, size) + 1
    assert torch.equal(aot.ops.argmin(positive, 1), positive.argmin(1))
    assert torch.equal(aot.ops.argmax(-positive, 1), (-positive).argmax(1))
    assert aot.ops.amax(torch.full((size,), -(2**63))).item() == -(2**63)


def test_float64_constants_are_float64() -> None:
    """Field case A18."""
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert aot.ops.mean(x).item() == 7.0 / 3.0
    assert aot.ops.sum(torch.tensor([1.0, 2e50], dtype=torch.float64)).item() == 2e50


def test_conjugate_and_negative_views() -> None:
    """Field case A27."""
    x = torch.tensor([1 + 2j, 3 + 4j])
    assert aot.ops.sum(x.conj()).item() == 4 - 6j
    assert aot.ops.sum(x.conj().imag).item() == -6.0


def test_repeated_launches_are_equal_bit_for_bit(backend: InterpreterBackend) -> None:
    """Field cases A28, A30: split and strided results do not change from run to run."""
    x = op_inputs.make((7, 301), "float32", seed=3)
    for view in (x, x.T, x[:1].expand(5, 301)):
        first = aot.ops.sum(view)
        for _ in range(7):
            assert torch.equal(aot.ops.sum(view), first)
    assert any(splits > 1 for _, (_, splits) in backend.launches)


def test_out_is_written_where_it_lies() -> None:
    """Field case D06."""
    x = op_inputs.make((5, 70), "float32", seed=6)
    held = torch.full((5, 3), -7.0)
    assert aot.ops.sum(x, 1, out=held[:, 1]).data_ptr() == held[:, 1].data_ptr()
    torch.testing.assert_close(held[:, 1], x.sum(1))
    assert held[:, ::2].eq(-7.0).all()
    values, indices = torch.empty(5), torch.empty(5, dtype=torch.int64)
    aot.ops.min(x, 1, out=(values, indices))
    assert torch.equal(values, x.min(1).values)
    assert torch.equal(indices, x.min(1).indices)


def test_an_extent_above_tritons_largest_tensor(backend: InterpreterBackend) -> None:
    """Field case A17: more elements than a tensor of Triton may have, in few steps of a loop."""
    backend.tiles = {"BLOCK_ROWS": 1, "BLOCK_COLS": 2048, "VECTOR": 16, "UNROLL": 4}
    backend.split = SplitPolicy(processors=1, programs=1)
    for n in (1048575, 1048577):
        x = torch.zeros(1, n, dtype=torch.int8)
        x[0, n - 1] = 1
        assert aot.ops.argmax(x, 1).item() == n - 1
        assert aot.ops.sum(x, 1).item() == 1
    assert {sizes for _, sizes in backend.launches} == {(1, 1)}
