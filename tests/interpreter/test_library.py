"""``torch.ops.aot``: shapes, gradients, batching and tracing of the operators, under the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import op_inputs
import pytest
import torch
from test_ops_interpreter import InterpreterBackend, outcome
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import aot
from aot.errors import KernelMiss
from aot.loader.ops import library
from aot.loader.ops.backend import use_backend

pytestmark = [pytest.mark.interpreter, pytest.mark.filterwarnings("ignore:ComplexHalf support")]

DIFFERENTIABLE = ("sum", "mean", "prod", "amax", "amin", "max", "min")
# Every overload: its function, and arguments after the input.
CALLS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    *((op, args) for op in ("sum", "mean", "amax", "amin", "any", "all") for args in ((), ([0, 2], True))),
    *((op, args) for op in ("prod", "argmax", "argmin", "max", "min") for args in ((), (1,), (-1, True))),
)


@pytest.fixture(autouse=True)
def backend() -> Iterator[InterpreterBackend]:
    found = InterpreterBackend()
    with use_backend(found):
        yield found


def call(op: str, *args: Any, **kwargs: Any) -> Any:
    return library.call(op, args, kwargs)


def first(found: Any) -> torch.Tensor:
    """The values of a result."""
    return found[0] if isinstance(found, tuple) else found


def number(op: str, *args: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: first(call(op, x, *args))


def target(op: str, args: tuple[Any, ...]) -> Any:
    packet = getattr(torch.ops.aot, op)
    return packet.dim if op in ("max", "min") and args else packet.default


@pytest.mark.parametrize(("op", "args"), CALLS)
def test_opcheck(op: str, args: tuple[Any, ...]) -> None:
    """Field cases D04, D05."""
    x = op_inputs.make((2, 3, 4), "float32")
    overload = target(op, args)
    for requires_grad in (False, True):
        opcheck(overload, (x.clone().requires_grad_(requires_grad), *args))
    opcheck(overload, (op_inputs.make((2, 3, 4), "float64").permute(2, 0, 1), *args))
    if op in ("sum", "mean", "prod"):
        opcheck(overload, (x.int(), *args), {"dtype": torch.float64})


@pytest.mark.parametrize("op", op_inputs.OPS)
def test_the_same_result_as_a_direct_call(op: str) -> None:
    """What an operator returns, or raises, and what its fake and meta versions do. Field case D05."""
    for dtype in ("float32", "int32", "bool", "complex64"):
        if dtype == "complex64" and op in op_inputs.ORDER_OPS:
            # Ours refuses these where torch, with nothing to compare, sometimes does not.
            continue
        for layout, x in op_inputs.layouts(dtype).items():
            for kwargs in op_inputs.calls(op, x):
                label = f"{op} {dtype} {layout} {kwargs}"
                wanted = outcome(op_inputs.expected, op, x, **kwargs)
                for found in (outcome(call, op, x.to("meta"), **kwargs), outcome(_fake, op, x, kwargs)):
                    _same_kind(found, wanted, label)


def _fake(op: str, x: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    with FakeTensorMode() as mode:
        return call(op, mode.from_tensor(x), **kwargs)


def _same_kind(found: Any, wanted: Any, label: str) -> None:
    if isinstance(wanted, Exception):
        assert type(found) is type(wanted), f"{label}: {found!r}"
        return
    assert not isinstance(found, Exception), f"{label}: {found!r}"
    assert type(found) is type(wanted) or isinstance(found, torch.Tensor), label
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else ((found, wanted),)
    for one, other in pairs:
        assert (one.shape, one.dtype) == (other.shape, other.dtype), label
        assert one.is_contiguous(), label


@pytest.mark.parametrize("op", op_inputs.OPS)
def test_real_results(op: str) -> None:
    x = op_inputs.make((3, 4, 5), "float32", seed=4).permute(1, 2, 0)
    for kwargs in op_inputs.calls(op, x):
        found = call(op, x, **kwargs)
        op_inputs.check(found, op_inputs.expected(op, x, **kwargs), f"{op} {kwargs}")
    assert type(call("max", x, 0)) is torch.return_types.max


def test_fake_results_stay_on_their_device() -> None:
    with FakeTensorMode():
        x = torch.empty(3, 4, device="cuda:1")
        assert call("mean", x, 0).device == torch.device("cuda:1")
        assert call("min", x, 0).indices.device == torch.device("cuda:1")


def test_wrong_arguments_raise_what_a_direct_call_raises() -> None:
    x = torch.empty(3, 4, device="meta")
    with pytest.raises(TypeError, match=r"^sum\(\): argument 'keepdim' must be bool, not int$"):
        call("sum", x, 0, 1)
    with pytest.raises(TypeError, match=r"^sum\(\): argument 'dim' must be int or tuple of ints, not str$"):
        call("sum", x, "rows")
    with pytest.raises(RuntimeError, match="dim 1 appears multiple times in the list of dims"):
        call("sum", x, (1, -1))
    with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
        call("amax", x.to(torch.complex64))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        call("sum", torch.ones(3, requires_grad=True), out=torch.empty(()))


GRADIENTS = [(op, args) for op, args in CALLS if op in DIFFERENTIABLE]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "args"), GRADIENTS)
def test_gradients(op: str, args: tuple[Any, ...]) -> None:
    """First and second order, backward and forward. Field case D04."""
    x = torch.rand(2, 1, 3, dtype=torch.float64).add(0.5).requires_grad_()
    function = number(op, *args)
    assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, (x,), check_fwd_over_rev=True)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["sum", "mean", "prod"])
def test_complex_gradients(op: str) -> None:
    # The numerical side takes a launch for each pair of numbers, so tensors are small.
    x = torch.randn(1, 2, dtype=torch.complex128, requires_grad=True)
    for args in ((), (1,)):
        assert torch.autograd.gradcheck(number(op, *args), (x,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(number(op, *args), (x,))
    real = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    widened = lambda x: call(op, x, 1, dtype=torch.complex128)  # noqa: E731
    assert torch.autograd.gradcheck(widened, (real,), check_forward_ad=True)


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_gradients_are_torchs(op: str) -> None:
    """Ties, zeros, NaN, no dimensions, half precision, another dtype of the result."""
    special = torch.tensor([[2.0, 0.0, 2.0], [0.0, 0.0, 1.0], [3.0, math.nan, 3.0]])
    if op == "prod":
        # Beside several zeros torch's gradient is 0 where an element is NaN; ours is NaN.
        special = special.nan_to_num(0.0)
    inputs = [special, special.half(), special[0], special[1, 1], torch.ones(4, 3)]
    for x in inputs:
        for args in ((), (0,), (-1, True)):
            keywords = [{}]
            if op in ("sum", "mean", "prod") and (op != "prod" or args):
                keywords.append({"dtype": torch.float64})
            for kwargs in keywords:
                ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
                found = first(call(op, ours, *args, **kwargs))
                wanted = first(getattr(torch, op)(theirs, *args, **kwargs))
                found.backward(torch.full_like(found, 2.0))
                wanted.backward(torch.full_like(wanted, 2.0))
                assert ours.grad is not None
                assert ours.grad.dtype == x.dtype
                torch.testing.assert_close(
                    ours.grad, theirs.grad, equal_nan=True, msg=f"{op} {x} {args} {ours.grad} {theirs.grad}"
                )


def test_prod_of_zeros_has_second_derivatives() -> None:
    for zeros in ([0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]):
        x = torch.tensor(zeros, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(number("prod"), (x,))
        assert torch.autograd.gradgradcheck(number("prod"), (x,))
        assert torch.equal(
            torch.func.hessian(number("prod"))(x.detach()), torch.func.hessian(torch.prod)(x.detach())
        )


def test_gradients_of_empty_tensors() -> None:
    for op in ("sum", "mean", "prod"):
        x = torch.empty(0, 3, requires_grad=True)
        for args in ((), (0,)):
            found = first(call(op, x, *args))
            (grad,) = torch.autograd.grad(found, x, torch.ones_like(found))
            assert grad.shape == x.shape


def test_results_without_a_gradient() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    for op in ("argmax", "argmin", "any", "all"):
        assert not call(op, x, 0).requires_grad
    assert not call("max", x, 0).indices.requires_grad
    assert not call("sum", x, dtype=torch.int64).requires_grad
    with torch.no_grad():
        assert not call("sum", x).requires_grad
    with torch.inference_mode():
        assert call("sum", torch.rand(3)).is_inference()


def test_transforms() -> None:
    """torch.func: tangents and gradients through every level. Field case D10."""
    x = torch.rand(4, 5, dtype=torch.float64) + 0.5
    assert torch.equal(torch.func.jvp(number("sum", 0), (x,), (x,))[1], x.sum(0))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.equal(forward_ad.unpack_dual(number("max", 1)(dual)).tangent, torch.ones(4).double())
    for op in DIFFERENTIABLE:
        theirs = lambda x: first(getattr(torch, op)(x))  # noqa: B023, E731
        for transform in (torch.func.grad, torch.func.hessian, lambda f: torch.vmap(torch.func.grad(f))):
            torch.testing.assert_close(transform(number(op))(x), transform(theirs)(x))
        batched = torch.func.grad(lambda x: torch.vmap(number(op))(x).sum())  # noqa: B023
        torch.testing.assert_close(batched(x), torch.vmap(torch.func.grad(theirs))(x))


def _all(found: Any) -> tuple[torch.Tensor, ...]:
    return tuple(found) if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("op", op_inputs.OPS)
def test_vmap(op: str) -> None:
    """Field case D10: against a Python loop, over each dimension, of every layout of arguments."""
    x = op_inputs.make((2, 3, 4), "float32", seed=8)
    for in_dim in (0, 1, -1):
        for kwargs in op_inputs.calls(op, x[0]):
            found = torch.vmap(lambda row: call(op, row, **kwargs), in_dims=in_dim)(x)  # noqa: B023
            rows = [op_inputs.expected(op, row, **kwargs) for row in x.unbind(in_dim)]
            for one, others in zip(_all(found), zip(*map(_all, rows), strict=True), strict=True):
                other = torch.stack(others)
                torch.testing.assert_close(one, other, msg=f"{op} {in_dim} {kwargs}")
    assert torch.equal(torch.vmap(number("sum"))(x[0, 0]), x[0, 0])
    assert torch.vmap(number("any", []))(x).shape == x.shape
    nested = torch.vmap(torch.vmap(number("mean")))(x)
    torch.testing.assert_close(nested, x.mean(-1))


def test_needed() -> None:
    x = torch.rand(3)
    grad = torch.rand(3, requires_grad=True)
    needed = lambda tensor: library.needed((tensor,), {})  # noqa: E731
    assert not needed(x)
    assert not needed(torch.nn.Parameter(x, requires_grad=False))
    assert not library.needed((), {"input": x})
    assert not needed([1.0])
    assert needed(grad)
    assert library.needed((), {"input": grad})
    with torch.no_grad():
        assert not needed(grad)
    assert needed(x.to("meta"))
    assert needed(x.as_subclass(type("Sub", (torch.Tensor,), {})))
    with FakeTensorMode() as mode:
        assert needed(mode.from_tensor(x))
    with TorchDispatchMode():
        assert needed(x)
    with forward_ad.dual_level():
        assert needed(x)
    seen = []
    torch.vmap(lambda row: seen.append(needed(row)) or row)(x)
    torch.jit.trace(lambda row: seen.append(needed(row)) or row + 1, (x,), check_trace=False)
    assert seen == [True, True]


def test_jit_trace_records_the_operator() -> None:
    x = torch.rand(3, 4)
    traced = torch.jit.trace(number("sum", 1), (x,))
    assert "aot::sum" in str(traced.graph)
    torch.testing.assert_close(traced(x * 2), x.sum(1) * 2)


def test_vmap_is_one_launch(backend: InterpreterBackend) -> None:
    torch.vmap(number("sum"))(torch.rand(5, 6, 7))
    assert len(backend.launches) == 1


def test_misses(backend: InterpreterBackend) -> None:
    def missing(name: str) -> Any:
        raise KernelMiss("no variant", kernel=name, reasons=())

    backend.kernel = missing  # type: ignore[method-assign]
    x = torch.rand(3, 4, requires_grad=True)
    with pytest.raises(KernelMiss, match="no variant"):
        call("prod", x)
    with aot.fallback("eager"):
        values, indices = call("max", x, 1)
    assert torch.equal(indices, x.argmax(1))
    values.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.nn.functional.one_hot(indices, 4).float())


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx(tracing_mode: str) -> None:
    x = torch.rand(3, 4)
    traced = make_fx(number("max", 1), tracing_mode=tracing_mode)(x)
    assert torch.ops.aot.max.dim in {node.target for node in traced.graph.nodes}
    assert torch.equal(traced(x), x.amax(1))


class Logged(torch.Tensor):
    """A wrapper that writes down the operators it sees."""

    seen: list[str]
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Logged:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        plain = tree_map(lambda x: x.inner if isinstance(x, Logged) else x, (args, kwargs or {}))
        found = func(*plain[0], **plain[1])
        return tree_map(lambda x: Logged(x) if isinstance(x, torch.Tensor) else x, found)


def test_subclasses() -> None:
    """Field case D08: the subclass sees the operator, the kernel sees plain tensors."""
    Logged.seen = []
    x = torch.rand(3, 4)
    found = call("max", Logged(x), 1)
    assert Logged.seen == ["aot.max.dim"]
    assert type(found.values) is Logged
    assert torch.equal(found.indices.inner, x.argmax(1))
    plain = type("Plain", (torch.Tensor,), {})
    found = call("sum", x.as_subclass(plain), 1)
    assert type(found) is plain
    torch.testing.assert_close(found.as_subclass(torch.Tensor), x.sum(1))


def test_autocast_does_not_change_results() -> None:
    """Field case D09: the policy of these operators is none."""
    x = torch.rand(3, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert call("sum", x, 1).dtype == torch.bfloat16
        assert call("sum", x.float(), 1).dtype == torch.float32
