"""``aot.ops`` against torch: arguments, dtypes, errors, ``out=``, every layout. No GPU, no Triton.

The kernels are those of ``reference_kernels``: what is tested here is all that stands between
a call and a launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import op_inputs
import opinfo_cases
import pytest
import torch
from reference_kernels import ReferenceBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import aot
from aot.dtypes import DTYPES
from aot.errors import LaunchError
from aot.loader.ops import table, workspace
from aot.loader.ops.backend import use_backend
from aot.loader.ops.splits import SplitPolicy

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")


@pytest.fixture(autouse=True)
def reference() -> Iterator[ReferenceBackend]:
    backend = ReferenceBackend()
    with use_backend(backend):
        yield backend


def ours(name: str) -> Any:
    return getattr(aot.ops, name)


def direct(op: str) -> Any:
    """The function behind ``aot.ops.<op>`` that never asks torch's dispatcher: the last line of defence."""
    return getattr(aot.ops, op).direct


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call returns, or the exception that it raises."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return error


@pytest.mark.parametrize(("op", "variant"), opinfo_cases.OPS)
def test_torchs_own_samples(op: str, variant: str) -> None:
    """PyTorch's OpInfo samples of every dtype that it takes on the CPU."""
    dtypes = sorted(opinfo_cases.dtypes_of(op, variant, "cpu"), key=str)
    count = 0
    for case in opinfo_cases.cases(op, variant, "cpu", dtypes):
        wanted = outcome(case.expected)
        found = outcome(ours(op), case.input, *case.args, **case.kwargs)
        if isinstance(wanted, Exception):
            assert type(found) is type(wanted), case.label
        else:
            op_inputs.check(found, wanted, case.label)
        count += 1
    assert count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", op_inputs.OPS)
def test_every_dtype_and_layout(op: str, dtype: str) -> None:
    """Field cases A10, A12, A13, A16, A22, A28 to A34."""
    if not op_inputs.serves(op, dtype):
        with pytest.raises((RuntimeError, NotImplementedError)):
            ours(op)(op_inputs.make((3, 4), dtype))
        return
    for layout, x in op_inputs.layouts(dtype).items():
        for kwargs in op_inputs.calls(op, x):
            label = f"{op} {dtype} {layout} {kwargs}"
            wanted = outcome(op_inputs.expected, op, x, **kwargs)
            found = outcome(ours(op), x, **kwargs)
            if isinstance(wanted, Exception):
                assert (type(found), str(found)) == (type(wanted), str(wanted)), label
            else:
                op_inputs.check(found, wanted, label)


X = torch.arange(12.0).view(3, 4)
INT = torch.arange(12).view(3, 4)
EMPTY = torch.empty(0, 3)


@pytest.mark.parametrize(
    ("op", "x", "kwargs"),
    [
        pytest.param(op, x, kwargs, id=f"{op}-{name}-{i}")
        for op, name, x, all_kwargs in (
            *(
                (op, "dims", X, ({"dim": 2}, {"dim": -3}, {"dim": (0, 5)}, {"dim": (0, 0)}, {"dim": (1, -1)}))
                for op in op_inputs.LIST_OPS
            ),
            *((op, "dim", X, ({"dim": 2}, {"dim": -3})) for op in op_inputs.OPS),
            *((op, "0-d", torch.tensor(1.0), ({"dim": 1}, {"dim": -2})) for op in op_inputs.OPS),
            *((op, "0-d", torch.tensor(1.0), ({"dim": (0, -1)},)) for op in op_inputs.LIST_OPS),
            *((op, "empty", EMPTY, ({}, {"dim": 0})) for op in op_inputs.ORDER_OPS),
            *((op, "empty", torch.empty(2, 0, 3), ({"dim": (0, 1)}, {"dim": []})) for op in ("amax", "amin")),
            *((op, "65 dims", torch.zeros([1] * 65), ({"dim": 0},)) for op in op_inputs.OPS),
            ("argmax", "complex", X.cfloat(), ({}, {"dim": 0})),
            ("argmax", "list", X, ({"dim": [0]}, {"dim": ()}, {"dim": True}, {"dim": 1.0})),
            ("max", "complex", X.cfloat(), ({"dim": 0},)),
            ("mean", "int", INT, ({}, {"dim": 5}, {"dtype": torch.int64})),
            ("mean", "bool", INT.bool(), ({},)),
            ("mean", "float", X, ({"dtype": torch.int32},)),
        )
        for i, kwargs in enumerate(all_kwargs)
    ],
)
def test_errors_are_torchs(op: str, x: torch.Tensor, kwargs: dict[str, Any]) -> None:
    """Field cases A23, A31, A33, A34: the same exception, in the same words."""
    with pytest.raises(Exception) as wanted:  # noqa: PT011
        getattr(torch, op)(x, **kwargs)
    with pytest.raises(wanted.type) as found:
        ours(op)(x, **kwargs)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "message"),
    [
        ("sum", ([1, 2],), {}, "sum(): argument 'input' (position 1) must be Tensor, not list"),
        ("sum", (X, "a"), {}, "sum(): argument 'dim' must be int or tuple of ints, not str"),
        ("sum", (X, True), {}, "sum(): argument 'dim' must be int or tuple of ints, not bool"),
        (
            "amax",
            (X, [0, 1.0]),
            {},
            "amax(): argument 'dim' must be int or tuple of ints, not list of float, int",
        ),
        ("prod", (X, [0]), {}, "prod(): argument 'dim' must be int, not list"),
        ("max", (X, ()), {}, "max(): argument 'dim' must be int, not tuple"),
        ("sum", (X, 0, 1), {}, "sum(): argument 'keepdim' must be bool, not int"),
        ("sum", (X,), {"dtype": "f"}, "sum(): argument 'dtype' must be torch.dtype, not str"),
        ("sum", (X, 1), {"out": [1]}, "sum(): argument 'out' must be Tensor, not list"),
        (
            "max",
            (X, 1),
            {"out": torch.zeros(3)},
            "max(): argument 'out' must be tuple of Tensors, not Tensor",
        ),
        ("max", (X, 1), {"out": (torch.zeros(3),)}, "expected tuple of 2 elements but got 1"),
        (
            "max",
            (X, X),
            {},
            "max(): found a second tensor, but aot.ops.max reduces one; "
            "for the elementwise max call torch.maximum",
        ),
    ],
)
def test_wrong_types(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    """torch raises ``TypeError`` too, but for the elementwise max, which ours has not."""
    with pytest.raises(TypeError) as found:
        ours(op)(*args, **kwargs)
    assert str(found.value) == message


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("amax", "\"max_values_cuda\" not implemented for 'ComplexFloat'"),
        ("amin", "\"min_values_cuda\" not implemented for 'ComplexFloat'"),
        ("max", "\"max_all_cuda\" not implemented for 'ComplexFloat'"),
    ],
)
def test_complex_numbers_have_no_order(op: str, message: str) -> None:
    with pytest.raises(NotImplementedError) as found:
        ours(op)(X.cfloat())
    assert str(found.value) == message


@pytest.mark.parametrize("dim", [np.int64(1), torch.tensor(1), torch.Size([1])])
def test_dims_that_are_ints_by_another_name(dim: Any) -> None:
    op_inputs.check(ours("sum")(X, dim), X.sum(1), str(dim))


@pytest.mark.parametrize("source", [torch.float16, torch.float32, torch.int8, torch.bool, torch.uint8])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64,
     torch.uint8, torch.bool, torch.complex64, float, int, bool, complex],
)  # fmt: skip
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_dtype_argument(op: str, source: torch.dtype, dtype: Any) -> None:
    """Field case A10: input and output dtype are named apart, and wrap as torch's do."""
    x = op_inputs.make((7, 9), str(source).removeprefix("torch."), seed=5)
    if dtype in (torch.float16, torch.bfloat16):
        # torch multiplies halves in half on the CPU.
        wanted = getattr(torch, op)(x.to(dtype).double(), 1).to(dtype)
    else:
        wanted = getattr(torch, op)(x, 1, dtype=dtype)
    op_inputs.check(ours(op)(x, 1, dtype=dtype), wanted, f"{source} {dtype}")


def test_integer_mean_with_a_dtype() -> None:
    """Field case A23: the sum does not wrap before the division."""
    big = torch.full((4,), 2**31 - 1, dtype=torch.int32)
    assert ours("mean")(big, dtype=torch.float64).item() == 2147483647.0
    assert ours("mean")(big, dtype=torch.float32).item() == 2147483648.0
    assert ours("mean")(
        torch.tensor([1, 2, 4], dtype=torch.int32), dtype=torch.float32
    ).item() == pytest.approx(7 / 3)


def test_fp8_sums_accumulate_in_float32() -> None:
    """The extension for dtypes that ATen does not sum: rounded once, or not at all with ``dtype=``."""
    x = torch.full((1000,), 0.25).to(torch.float8_e4m3fn)
    found = ours("sum")(x)
    assert (found.dtype, found.float().item()) == (torch.float8_e4m3fn, 256.0)
    assert ours("sum")(x, dtype=torch.float32).item() == 250.0
    assert ours("sum")(x, dtype=torch.float16).dtype == torch.float16


def test_fp8_extremes_compare_as_numbers() -> None:
    """Field case A22."""
    codes = torch.arange(256).to(torch.uint8)
    numbers = codes[(codes & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
    assert ours("amax")(numbers).float().item() == 448.0
    assert ours("amin")(numbers).float().item() == -448.0
    assert ours("amax")(codes.view(torch.float8_e4m3fn)).float().isnan()
    assert ours("max")(
        torch.tensor([0x7C, 0x01], dtype=torch.uint8).view(torch.float8_e5m2)
    ).float().item() == float("inf")


def test_unsigned_integers_compare_unsigned() -> None:
    """Field case A13."""
    assert ours("max")(torch.tensor([2**63 + 5, 3], dtype=torch.uint64)).item() == 2**63 + 5
    assert ours("argmax")(torch.tensor([3, 2**63 + 5], dtype=torch.uint64)).item() == 1
    assert ours("min")(torch.tensor([2**31, 1], dtype=torch.uint32)).item() == 1
    assert ours("sum")(torch.tensor([65535, 65535], dtype=torch.uint16)).item() == 131070


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_truth_of_bytes(dtype: torch.dtype) -> None:
    """Field case A12: 2 and 128 are true, the result holds 0 and 1, uint8 stays uint8."""
    x = torch.tensor([[0, 1, 2], [128, 255, 0], [0, 0, 0]]).to(dtype)
    for op in ("any", "all"):
        for dim in (None, 0, 1):
            found = ours(op)(x, dim)
            assert found.dtype == (torch.uint8 if dtype == torch.uint8 else torch.bool)
            assert torch.equal(found.bool(), getattr(torch, op)(x.bool(), dim=dim))
            assert set(found.to(torch.uint8).flatten().tolist()) <= {0, 1}


def test_lazy_conjugate_and_negative() -> None:
    """Field case A27."""
    x = torch.tensor([1 + 2j, 3 + 4j])
    assert ours("sum")(x.conj()).item() == 4 - 6j
    assert x.conj().imag.is_neg()
    assert ours("sum")(x.conj().imag).item() == -6.0
    assert ours("argmax")(x.conj().imag).item() == 0


@pytest.mark.parametrize("op", ["argmax", "argmin", "max", "min"])
def test_ties_take_the_first_index(op: str) -> None:
    """Field cases A02 and A14, across splits and in a transposed tensor."""
    find = (lambda x, d: ours(op)(x, d)) if op.startswith("arg") else (lambda x, d: ours(op)(x, d).indices)
    flat = torch.full((1, 2001), float("-inf"))
    assert find(flat, 1).item() == 0
    assert find(torch.tensor([[2, 3, 0, 3, 0], [1, 3, 1, 3, 1]]), 1).tolist() == (
        [1, 1] if "max" in op else [2, 0]
    )
    if op.startswith("arg"):
        assert ours(op)(torch.zeros(40, 50).T).item() == 0
        tied = torch.zeros(4, 5)
        tied[1, 3] = tied[2, 1] = 7 if op == "argmax" else -7
        assert ours(op)(tied.T).item() == tied.T.flatten().tolist().index(tied[1, 3].item())


def test_nan_wins() -> None:
    """Field case A01, with the NaN in each split."""
    for at in (0, 499, 999):
        x = torch.full((3, 1000), float("inf"))
        x[1, at] = float("nan")
        for op in ("amax", "amin", "max", "min"):
            assert ours(op)(x).isnan()
        assert ours("amax")(x, 1).isnan().tolist() == [False, True, False]
        assert ours("argmin")(x, 1).tolist() == [0, at, 0]
        assert ours("max")(x, 1).indices.tolist() == [0, at, 0]


def documented_rows() -> list[str]:
    """The dtype table of the reference page, from the table that the operations use."""
    rows = []
    for name, dtype in DTYPES.items():
        ordered = dtype.kind != "complex"
        sums = f"`{table.default_result(table.SUM, name)}`"
        mean = sums if op_inputs.serves("mean", name) else "needs `dtype=`"
        cells = [
            f"`{name}`",
            sums,
            mean,
            f"`{table.accumulator('sum', name)}`",
            f"`{name}`" if ordered else "refused",
            "`int64`" if ordered else "refused",
            f"`{table.default_result(table.ANY, name)}`",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def test_the_reference_page_has_the_dtypes() -> None:
    page = (Path(__file__).parents[1] / "docs/reference/ops.md").read_text(encoding="utf-8")
    tables = [line for line in page.splitlines() if line.startswith("| `")]
    found = [line for line in tables if line.split("`")[1] in DTYPES]
    assert found == documented_rows()


# Splits and their memory


def test_splits_share_one_counter_buffer(reference: ReferenceBackend) -> None:
    x = torch.arange(5000)
    assert ours("sum")(x).item() == 12497500
    assert ours("argmax")(x).item() == 4999
    assert [grid for _, grid, _ in reference.launches] == [(1, 16), (1, 16)]
    first = workspace.counters(x.device, 0, 1)
    assert first is workspace.counters(x.device, 0, 1024)
    assert first is not workspace.counters(x.device, 1, 1)
    grown = workspace.counters(x.device, 0, first.numel() + 1)
    assert grown.numel() == 2 * first.numel()
    assert workspace.counters(x.device, 0, 1) is grown


def test_a_captured_graph_owns_its_counters(reference: ReferenceBackend) -> None:
    reference.stream_key = None
    before = workspace.counters(torch.device("cpu"), "other", 1)
    assert ours("sum")(torch.ones(5000)).item() == 5000
    assert workspace.counters(torch.device("cpu"), None, 1) is not before
    assert workspace.counters(torch.device("cpu"), None, 3).numel() == 3


def test_a_captured_graph_zeroes_its_counters_once(reference: ReferenceBackend) -> None:
    """One buffer a stream of a capture, whatever else ran; another capture has its own."""
    device = torch.device("cpu")
    first = workspace.counters(device, workspace.Capture(7, 1), 1)
    assert workspace.counters(device, workspace.Capture(7, 1), 1000) is first
    beside = workspace.counters(device, workspace.Capture(8, 1), 1)
    assert beside is not first
    assert workspace.counters(device, workspace.Capture(7, 1), 1) is first
    grown = workspace.counters(device, workspace.Capture(7, 1), first.numel() + 1)
    assert grown is not first
    assert workspace.counters(device, workspace.Capture(7, 1), 1) is grown
    assert workspace.counters(device, workspace.Capture(7, 2), 1) is not grown
    eager = workspace.counters(device, 7, 1)
    assert eager is not workspace.counters(device, workspace.Capture(7, 2), 1)


def test_wide_columns(reference: ReferenceBackend) -> None:
    reference.split = SplitPolicy(processors=64, min_split=64, columns=8)
    x = op_inputs.make((3, 1000, 64), "int32")
    assert torch.equal(ours("sum")(x, 1), x.sum(1))
    assert torch.equal(ours("argmax")(x, 1), x.argmax(1))
    assert all(name.endswith("_cols") and grid == (48, 16) for name, grid, _ in reference.launches)


def test_split_columns(reference: ReferenceBackend) -> None:
    reference.split = SplitPolicy(processors=64, min_split=64, columns=8)
    x = op_inputs.make((1000, 12), "int32")
    assert torch.equal(ours("sum")(x, 0), x.sum(0))
    assert torch.equal(ours("argmax")(x, 0), x.argmax(0))
    assert all(name.endswith("_strided") and grid == (3, 8) for name, grid, _ in reference.launches)


def test_nothing_to_write_launches_nothing(reference: ReferenceBackend) -> None:
    """Field case A33: a grid of 0 is not launched."""
    for op in op_inputs.OPS:
        assert ours(op)(torch.empty(0, 4), 1) is not None
    assert reference.launches == []


# out=


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "any", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32,
                                   torch.uint8, torch.bool, torch.complex64])  # fmt: skip
@pytest.mark.parametrize("source", [torch.float32, torch.int32])
def test_out_dtypes(op: str, dtype: torch.dtype, source: torch.dtype) -> None:
    """Field case D06: castable or refused, in torch's words."""
    x = X.to(source)
    wanted, found = torch.full((3,), 7).to(dtype), torch.full((3,), 7).to(dtype)
    torchs = outcome(getattr(torch, op), x, 1, out=wanted)
    result = outcome(ours(op), x, 1, out=found)
    if isinstance(torchs, RuntimeError):
        assert (type(result), str(result)) == (type(torchs), str(torchs))
    else:
        assert result is found
        assert torch.equal(found, wanted)


def test_out_dtype_beside_dtype() -> None:
    with pytest.raises(
        RuntimeError, match=r"^Expected out tensor to have dtype double, but got float instead$"
    ):
        ours("sum")(X, 1, dtype=torch.float64, out=torch.zeros(3))
    out = torch.zeros(3, dtype=torch.float64)
    assert ours("mean")(INT, 1, dtype=torch.float64, out=out) is out
    assert out.tolist() == [1.5, 5.5, 9.5]


def test_out_of_max_without_a_dim() -> None:
    out = torch.zeros((), dtype=torch.float64)
    assert ours("max")(X, out=out) is out
    assert out.item() == 11.0
    with pytest.raises(
        RuntimeError, match=r"^result type Float can't be cast to the desired output type Long$"
    ):
        ours("max")(X, out=torch.zeros((), dtype=torch.int64))


def test_out_keeps_its_strides() -> None:
    """Field case D06: written down the column, and nothing beside it."""
    for shape, pick in (((5, 4), lambda t: t[:, 1]), ((4, 5), lambda t: t.T[:, 2])):
        held = torch.full(shape, -7.0)
        out = pick(held)
        x = torch.arange(15.0).view(3, 5)
        assert aot.ops.sum(x, 0, out=out) is out
        wanted = torch.full(shape, -7.0)
        pick(wanted).copy_(x.sum(0))
        assert torch.equal(held, wanted)


def test_out_that_overlaps_the_input() -> None:
    """Field case D06: the input is read whole before it is written."""
    for pick in (lambda y: y[0:1], lambda y: y[1:2], lambda y: y.view(-1)[2:6].view(1, 4)):
        x = X.clone()
        assert torch.equal(aot.ops.sum(x, 0, True, out=pick(x)), X.sum(0, True))
    x = INT.clone()
    values, indices = aot.ops.max(x, 1, out=(x[:, 0], x[:, 1]))
    assert (values.tolist(), indices.tolist()) == ([3, 7, 11], [3, 3, 3])
    square = torch.arange(9.0).view(3, 3)
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        aot.ops.sum(square, 0, out=square)
    assert square.tolist() == [9.0, 12.0, 15.0]


def test_out_is_written_in_place_where_it_can_be() -> None:
    out = torch.zeros(3)
    address, version = out.data_ptr(), out._version
    assert aot.ops.sum(X, 1, out=out) is out
    assert out.data_ptr() == address
    assert out._version > version
    with torch.inference_mode():
        inside = torch.zeros(3)
        assert torch.equal(aot.ops.sum(X, 1, out=inside), X.sum(1))


def test_out_of_another_shape_is_resized_as_torch_does() -> None:
    messages = []
    for sum_ in (torch.sum, aot.ops.sum):
        out = torch.zeros(5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sum_(X, 1, out=out)
            sum_(X, 1, out=torch.empty(0))
        assert torch.equal(out, X.sum(1))
        messages.append([str(w.message).split(" (Triggered")[0] for w in caught])
    assert messages[0] == messages[1]
    assert len(messages[1]) == 1


def test_out_pairs_of_max() -> None:
    values, indices = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    found = aot.ops.max(X, 1, out=(values, indices))
    assert isinstance(found, torch.return_types.max)
    assert found.values is values
    assert found.indices is indices
    assert (values.tolist(), indices.tolist()) == ([3.0, 7.0, 11.0], [3, 3, 3])
    with pytest.raises(
        RuntimeError, match=r"^Expected out tensor to have dtype long int, but got int instead$"
    ):
        aot.ops.max(X, 1, out=(values, indices.int()))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.zeros(1).expand(3), "unsupported operation: more than one element of the written-to tensor "
         "refers to a single memory location. Please clone() the tensor before performing the operation."),
        (torch.zeros(3, device="meta"), "Expected out tensor to have device cpu, but got meta instead"),
        (torch.zeros(3, requires_grad=True), "sum(): functions with out=... arguments don't support "
         "automatic differentiation, but one of the arguments requires grad."),
    ],
)  # fmt: skip
def test_out_that_cannot_be_written(out: torch.Tensor, message: str) -> None:
    with pytest.raises(RuntimeError) as found:
        aot.ops.sum(X, 1, out=out)
    assert str(found.value) == message


# What is not served


class Tagged(torch.Tensor):
    """A subclass that does nothing."""


def refused(name: str) -> Any:
    if name == "fake":
        with FakeTensorMode():
            return torch.ones(3)
    if name == "subclass":
        return torch.ones(3).as_subclass(Tagged)
    if name == "sparse":
        return torch.eye(3).to_sparse()
    if name == "nested":
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    if name == "quantized":
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    return torch.ones(3, device="meta")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fake", "found a tensor of the subclass FakeTensor, wanted a torch.Tensor"),
        ("subclass", "found a tensor of the subclass Tagged, wanted a torch.Tensor"),
        ("sparse", "found a tensor of layout torch.sparse_coo, wanted torch.strided"),
        ("nested", "found a tensor of layout nested, wanted torch.strided"),
        ("quantized", "found a tensor of the quantized dtype torch.qint8, wanted a plain dtype"),
        ("meta", "found a tensor on device meta, wanted cpu; aot.ops serves CPU tensors"),
    ],
)
def test_other_kinds_of_tensors(name: str, message: str) -> None:
    for op in ("sum", "argmax", "max"):
        with pytest.raises(LaunchError) as found:
            direct(op)(refused(name), *((0,) if op == "max" else ()))
        assert str(found.value) == f"aot.ops.{op}: {message}; torch.{op} may serve it"


def test_a_transform_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"^aot.ops.sum: found a tensor inside a torch.func transform"):
        torch.vmap(aot.ops.sum.direct)(X)


def test_cpu_tensors_are_refused_by_the_bundles_backend() -> None:
    from aot.loader.ops.backend import CudaBackend

    with use_backend(CudaBackend()), pytest.raises(LaunchError) as found:
        aot.ops.sum(X)
    assert str(found.value) == (
        "aot.ops.sum: found a tensor on device cpu, wanted cuda; aot.ops serves CUDA tensors; "
        "torch.sum may serve it"
    )


def test_no_gradient_is_lost_in_silence() -> None:
    x = torch.nn.Parameter(X.clone())
    for op in ("sum", "mean", "prod", "amax", "amin", "max", "min"):
        with pytest.raises(RuntimeError) as found:
            direct(op)(x)
        assert str(found.value) == (
            f"{op}(): found an input that requires grad, but aot.ops.{op} computes no gradient; "
            f"call it under torch.no_grad() or on input.detach(), or call torch.{op}"
        )
        with torch.no_grad():
            assert not direct(op)(x).requires_grad
    with pytest.raises(RuntimeError, match="computes no gradient"):
        aot.ops.max.direct(x, 1)
    for op in ("argmax", "argmin", "any", "all"):
        assert torch.equal(direct(op)(x), getattr(torch, op)(x))


def test_no_forward_gradient_is_lost_in_silence() -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(RuntimeError, match="computes no gradient"):
            aot.ops.sum.direct(dual)
        assert aot.ops.sum.direct(X).item() == 66.0


def test_a_dtype_without_arithmetic() -> None:
    bits = torch.empty(3, dtype=torch.bits8)
    with pytest.raises(
        NotImplementedError, match=r"^\"sum\" not implemented for 'bits8'; wanted one of float16,"
    ):
        aot.ops.sum(bits)
