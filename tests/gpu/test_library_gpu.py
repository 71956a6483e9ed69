"""``torch.ops.aot`` on the card, and ``aot.ops`` where a call goes that way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import op_inputs
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import aot
import aot.ops
from aot.loader.ops import library

DIFFERENTIABLE = ("sum", "mean", "prod", "amax", "amin", "max", "min")
CALLS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    *((op, args) for op in ("sum", "mean", "amax", "amin", "any", "all") for args in ((), ([0, 2], True))),
    *((op, args) for op in ("prod", "argmax", "argmin", "max", "min") for args in ((), (1,), (-1, True))),
)


def results(found: Any) -> tuple[torch.Tensor, ...]:
    return tuple(found) if isinstance(found, tuple) else (found,)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the exception that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def number(op: str, *args: Any) -> Any:
    return lambda x: results(getattr(aot.ops, op)(x, *args))[0]


@pytest.mark.parametrize(("op", "args"), CALLS)
def test_opcheck(op: str, args: tuple[Any, ...]) -> None:
    """Field cases D04, D05."""
    packet = getattr(torch.ops.aot, op)
    overload = packet.dim if op in ("max", "min") and args else packet.default
    x = op_inputs.make((2, 3, 40), "float32", device="cuda")
    for requires_grad in (False, True):
        torch.library.opcheck(overload, (x.clone().requires_grad_(requires_grad), *args))
    torch.library.opcheck(overload, (x.permute(2, 0, 1), *args))


@pytest.mark.parametrize("op", op_inputs.OPS)
def test_fake_results_are_like_the_real_ones(op: str) -> None:
    """Field case D05: shape, strides, dtype and device, of every layout."""
    for dtype in ("float16", "int32", "bool"):
        if not op_inputs.serves(op, dtype):
            continue
        for layout, x in op_inputs.layouts(dtype, device="cuda").items():
            for kwargs in op_inputs.calls(op, x):
                label = f"{op} {dtype} {layout} {kwargs}"
                real = outcome(lambda: library.call(op, (x,), kwargs))  # noqa: B023
                with FakeTensorMode() as mode:
                    made = mode.from_tensor(x)
                    fake = outcome(lambda: getattr(aot.ops, op)(made, **kwargs))  # noqa: B023
                if isinstance(real, Exception):
                    assert (type(fake), str(fake)) == (type(real), str(real)), label
                    continue
                assert not isinstance(fake, Exception), f"{label}: {fake!r}"
                assert isinstance(fake, tuple) == isinstance(real, tuple), label
                for one, other in zip(results(fake), results(real), strict=True):
                    assert (one.shape, one.stride(), one.dtype, one.device) == (
                        other.shape,
                        other.stride(),
                        other.dtype,
                        other.device,
                    ), label


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_gradients(op: str) -> None:
    """First and second order in float64, backward and forward; float32 as torch's."""
    x = torch.rand(2, 3, 4, dtype=torch.float64, device="cuda").add(0.5).requires_grad_()
    for args in ((), (1,), (-1, True)):
        assert torch.autograd.gradcheck(number(op, *args), (x,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(number(op, *args), (x,))
    values = op_inputs.make((300, 70), "float32", device="cuda")
    for args in ((), (0,), (1, True)):
        ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
        for tensor, found in (
            (ours, number(op, *args)(ours)),
            (theirs, results(getattr(torch, op)(theirs, *args))[0]),
        ):
            found.backward(torch.full_like(found, 2.0))
            assert tensor.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_gradients_of_complex_numbers_and_half_precision() -> None:
    x = torch.randn(3, 4, dtype=torch.complex128, device="cuda", requires_grad=True)
    for op in ("sum", "mean", "prod"):
        assert torch.autograd.gradcheck(number(op, 1), (x,), check_forward_ad=True)
    half = torch.rand(64, 64, device="cuda").half().requires_grad_()
    aot.ops.sum(half, 1, dtype=torch.float32).square().sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.float16


def test_autograds_own_thread() -> None:
    """A backward pass that reduces: autograd runs it in a thread of the device."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * aot.ops.amax(grad)

    x = torch.rand(5, device="cuda", requires_grad=True)
    Scaled.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 5


@pytest.mark.parametrize("op", op_inputs.OPS)
def test_vmap(op: str) -> None:
    """Field case D10."""
    x = op_inputs.make((4, 5, 6), "float32", device="cuda")
    for in_dim in (0, -1):
        for kwargs in op_inputs.calls(op, x[0]):
            found = torch.vmap(lambda row: getattr(aot.ops, op)(row, **kwargs), in_dims=in_dim)(x)  # noqa: B023
            rows = [results(getattr(aot.ops, op)(row, **kwargs)) for row in x.unbind(in_dim)]
            for one, others in zip(results(found), zip(*rows, strict=True), strict=True):
                torch.testing.assert_close(one, torch.stack(others), msg=f"{op} {in_dim} {kwargs}")


def test_transforms() -> None:
    x = torch.rand(4, 5, device="cuda", dtype=torch.float64) + 0.5
    for op in DIFFERENTIABLE:
        theirs = lambda x: getattr(torch, op)(x)  # noqa: B023, E731
        torch.testing.assert_close(torch.func.hessian(number(op))(x), torch.func.hessian(theirs)(x))
        per_row = torch.vmap(torch.func.grad(number(op)))(x)
        torch.testing.assert_close(per_row, torch.vmap(torch.func.grad(theirs))(x))
        _, tangent = torch.func.jvp(number(op), (x,), (x,))
        torch.testing.assert_close(tangent, torch.func.jvp(theirs, (x,), (x,))[1])


def test_modes() -> None:
    """inference_mode, no_grad, autocast (which changes nothing), meta tensors."""
    x = torch.rand(30, 40, device="cuda", requires_grad=True)
    with torch.inference_mode():
        found = aot.ops.sum(x, 1)
        assert found.is_inference()
        assert not torch.ops.aot.sum(torch.rand(3, device="cuda")).requires_grad
    with torch.no_grad():
        assert not aot.ops.sum(x, 1).requires_grad
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert aot.ops.sum(x.detach().bfloat16(), 1).dtype == torch.bfloat16
        assert torch.ops.aot.sum(x.detach().bfloat16(), 1).dtype == torch.bfloat16
        assert torch.sum(x.detach().bfloat16(), 1).dtype == torch.float32
    assert aot.ops.max(x.to("meta"), 1).indices.shape == (30,)
    with pytest.raises(RuntimeError, match="functions with out=... arguments don't support"):  # noqa: RUF043
        aot.ops.sum(x, 1, out=torch.empty(30, device="cuda"))


MODEL = """
import os, sys, torch, aot, aot.ops
from pathlib import Path

bundle = aot.open(os.environ["AOT_BUNDLE_PATH"])
aot.use(bundle)

def model(x):
    values, indices = aot.ops.max(x * 2, dim=-1)
    return aot.ops.sum(x.sin(), -1, keepdim=True) + 1, aot.ops.mean(x, dim=(0, 1)), values, indices

def eager(x):
    values, indices = torch.max(x * 2, dim=-1)
    return x.sin().sum(-1, keepdim=True) + 1, x.mean((0, 1)), values, indices

class Model(torch.nn.Module):
    def forward(self, x):
        return model(x)

def exported():
    batch = torch.export.Dim("batch", min=2, max=64)
    x = torch.rand(3, 500, device="cuda")
    return torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: batch}}, strict=True)

def check(function, rows, launches):
    x = torch.rand(rows, 500, device="cuda")
    before = bundle.stats()["launches"]
    torch.testing.assert_close(tuple(function(x)), eager(x))
    assert bundle.stats()["launches"] - before == launches, bundle.stats()
"""


def run_program(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process where torch may use Triton."""
    env = os.environ | {"AOT_BUNDLE_PATH": os.environ.get("AOT_BUNDLE_PATH", "dist/reductions")}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *args],
        capture_output=True,
        text=True,
        env=env,
        timeout=500,
    )


def program(code: str, *args: str) -> None:
    """Run a program that begins with MODEL."""
    done = run_program(MODEL + code, *args)
    assert done.returncode == 0, done.stderr


@pytest.mark.no_launch
def test_compile() -> None:
    """Our kernels beside those that inductor makes: one graph for every batch, and its gradient."""
    program(
        "from torch._dynamo.testing import CompileCounterWithBackend\n"
        "counter = CompileCounterWithBackend('inductor')\n"
        "compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)\n"
        "for rows in (3, 7, 33):\n"
        "    check(compiled, rows, 3)\n"
        "assert counter.frame_count == 1\n"
        "ours = torch.rand(5, 500, device='cuda', requires_grad=True)\n"
        "theirs = ours.detach().clone().requires_grad_()\n"
        "for function, x in ((compiled, ours), (eager, theirs)):\n"
        "    first, second, third, _ = function(x)\n"
        "    (first.sum() + second + third.square().mean()).backward()\n"
        "torch.testing.assert_close(ours.grad, theirs.grad)\n"
    )


@pytest.mark.no_launch
def test_compile_into_cuda_graphs() -> None:
    """Of rows that several programs share, so that partial results and counters are captured too."""
    program(
        "graphed = torch.compile(model, fullgraph=True, mode='reduce-overhead')\n"
        "for _ in range(5):\n"
        "    x = torch.rand(2, 40000, device='cuda')\n"
        "    found = tuple(part.clone() for part in graphed(x))\n"
        "    torch.testing.assert_close(found, eager(x))\n"
    )


@pytest.mark.no_launch
def test_export(tmp_path: Path) -> None:
    program(
        "path = Path(sys.argv[1])\n"
        "torch.export.save(exported(), path)\n"
        "loaded = torch.export.load(path).module()\n"
        "check(loaded, 9, 3)\n",
        str(tmp_path / "model.pt2"),
    )


PLAIN_PACKAGE = """
import sys, torch

@torch.library.custom_op("plain::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

twice.register_fake(torch.empty_like)

class Model(torch.nn.Module):
    def forward(self, x):
        return twice(x.sin()) + 1

x = torch.rand(3, 500, device="cuda")
program = torch.export.export(Model(), (x,))
path = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
torch.testing.assert_close(torch._inductor.aoti_load_package(path)(x), x.sin() * 2 + 1)
"""


@pytest.mark.no_launch
def test_aotinductor_package(tmp_path: Path) -> None:
    """The package calls our operators through the dispatcher of the process that loads it."""
    from torch.utils.cpp_extension import CUDA_HOME

    if CUDA_HOME is None or shutil.which("g++") is None:
        pytest.skip("AOTInductor needs the CUDA toolkit and a C++ compiler")
    ours = run_program(
        MODEL + "path = torch._inductor.aoti_compile_and_package(exported(), package_path=sys.argv[1])\n"
        "loaded = torch._inductor.aoti_load_package(path)\n"
        "for rows in (2, 9):\n"
        "    check(loaded, rows, 3)\n",
        str(tmp_path / "model.pt2"),
    )
    if ours.returncode < 0:
        # A signal, and no exception. It is torch's fault only where a package without us dies too.
        plain = run_program(PLAIN_PACKAGE, str(tmp_path / "plain.pt2"))
        if plain.returncode < 0:
            pytest.skip(
                f"torch {torch.__version__} dies of signal {-plain.returncode} with a package "
                "whose only custom operator is torch.library.custom_op's"
            )
        assert plain.returncode == 0, plain.stderr
    assert ours.returncode == 0, ours.stderr
