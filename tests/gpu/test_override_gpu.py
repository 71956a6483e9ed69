"""``aot.override`` on the card: torch's functions through prebuilt kernels, with ATen's results."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import exactness
import op_inputs
import opinfo_cases
import pytest
import torch

import aot
from aot.errors import UsageError
from aot.loader.ops.aten import OVERLOADS

warnings.filterwarnings("ignore", message=".*ComplexHalf.*")

DIFFERENTIABLE = ("sum", "mean", "prod", "amax", "amin", "max", "min")


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


@pytest.mark.parametrize(("op", "variant"), opinfo_cases.OPS)
def test_opinfo_samples(op: str, variant: str, bundle: aot.Bundle, passed: Any) -> None:
    """Every sample of every dtype that ATen takes on CUDA, by torch's function under the override."""
    for dtype in sorted(opinfo_cases.dtypes_of(op, variant, "cuda"), key=str):
        for case in opinfo_cases.cases(op, variant, "cuda", [dtype]):
            wanted = case.expected()
            with aot.override(op):
                found = case.expected()
            assert type(found) is type(wanted), case.label
            exactness.check_case(case, found, wanted)
        passed(op, str(dtype).removeprefix("torch."), "OpInfo under the override")


@pytest.mark.parametrize("op", op_inputs.OPS)
def test_every_layout(op: str, bundle: aot.Bundle) -> None:
    """Strides of the result too; errors are ATen's own; every call that ATen serves is ours."""
    for dtype in ("float32", "bfloat16", "int32"):
        for layout, x in op_inputs.layouts(dtype, device="cuda").items():
            for kwargs in op_inputs.calls(op, x):
                label = f"{op} {dtype} {layout} {kwargs}"
                call = lambda: getattr(torch, op)(x, **kwargs)  # noqa: B023, E731
                wanted = outcome(call)
                with aot.override_all():
                    before = bundle.stats()["launches"]
                    found = outcome(call)
                    launched = bundle.stats()["launches"] - before
                if isinstance(wanted, Exception):
                    assert (type(found), str(found)) == (type(wanted), str(wanted)), label
                    continue
                pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else ((found, wanted),)
                for one, other in pairs:
                    assert (one.dtype, one.shape) == (other.dtype, other.shape), label
                    assert one.stride() == other.stride(), label
                    if exactness.is_exact(op, dtype):
                        assert exactness.same(one, other), label
                    else:
                        exact = exactness.reference(op, x, **kwargs)
                        exactness.check_close(op, one, other, exact, label)
                    assert launched > 0 or one.numel() == 0, label


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_autograd(op: str) -> None:
    """Field case D03: aten's formulas above our kernels, first and second order, forward mode."""
    x = torch.rand(3, 4, dtype=torch.float64, device="cuda", requires_grad=True)
    function = getattr(torch, op)
    with aot.override_all():
        assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, (x,))
        along = lambda x: (lambda found: found[0] if isinstance(found, tuple) else found)(function(x, 1))  # noqa: E731
        assert torch.autograd.gradcheck(along, (x,), check_forward_ad=True)
        batched = torch.vmap(function)(x.detach())
    torch.testing.assert_close(batched, torch.stack([function(row) for row in x.detach()]))


def test_a_training_step() -> None:
    """A model's loss and gradients with the override on and off."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)).cuda()
    x, wanted = torch.randn(128, 64, device="cuda"), torch.randint(0, 10, (128,), device="cuda")

    def step() -> list[torch.Tensor]:
        model.zero_grad()
        found = model(x)
        loss = torch.nn.functional.cross_entropy(found, wanted) + found.amax(1).mean() + found.square().sum()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    plain = step()
    with aot.override_all():
        ours = step()
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_autocast() -> None:
    """Field case D09: the same dtypes with the override on and off."""
    calls = {op: getattr(torch, op) for op in op_inputs.OPS}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.rand(30, 40, device="cuda").to(dtype)
        for policy in (torch.float16, torch.bfloat16):
            with torch.autocast("cuda", dtype=policy):
                wanted = {op: call(x).dtype for op, call in calls.items()}
                with aot.override_all():
                    assert {op: call(x).dtype for op, call in calls.items()} == wanted


@pytest.mark.no_launch
def test_undone_exactly() -> None:
    """Field cases D01, D02: torch's dispatcher knows nothing of it afterwards; a second one is refused."""

    def dispatcher() -> dict[str, str]:
        names = [f"aten::{overload}" for overloads in OVERLOADS.values() for overload in overloads]
        return {
            name: torch._C._dispatch_dump(name) + torch._C._dispatch_dump_table(name) for name in names
        } | {"python": str(sorted(key for key in torch.library._impls if key.startswith("aten/")))}

    before = dispatcher()
    with aot.override_all():
        held = dispatcher()
        assert held != before
        with pytest.raises(
            UsageError, match=r"already has a Python kernel for CUDA, from another aot\.override"
        ):
            aot.override("sum").enable()
        assert dispatcher() == held
    assert dispatcher() == before


def test_what_is_not_cuda_is_not_touched(bundle: aot.Bundle) -> None:
    """Field case D12: CPU, meta, sparse and nested tensors, and the elementwise maximum."""
    x = torch.rand(4, 5)
    with aot.override_all():
        before = bundle.stats()["launches"]
        assert torch.equal(x.amax(1), x.max(1).values)
        assert x.to("meta").sum(0).shape == (5,)
        # Compared on the CPU, because torch.equal is a reduction itself.
        assert torch.equal(torch.max(x.cuda(), x.cuda() + 1).cpu(), x + 1)
        plain = type("Plain", (torch.Tensor,), {})
        assert type(x.cuda().as_subclass(plain).sum()) is plain
        assert bundle.stats()["launches"] == before
        assert torch.equal(x.cuda().amax(1).cpu(), x.amax(1))
        assert bundle.stats()["launches"] == before + 1
        torch.testing.assert_close(torch.sparse.sum(x.cuda().to_sparse()).cpu(), x.sum())


def test_data_loader_workers() -> None:
    """Field case D12: forked and spawned workers go on with CPU tensors."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0).view(16, 4))
    with aot.override_all():
        torch.ones(3, device="cuda").sum()
        for start in ("fork", "spawn"):
            loader = torch.utils.data.DataLoader(
                data, batch_size=4, num_workers=2, pin_memory=True, multiprocessing_context=start
            )
            total = sum(batch.cuda(non_blocking=True).sum().item() for (batch,) in loader)
            assert total == 64 * 63 / 2


def test_captured_in_a_graph() -> None:
    x = torch.rand(64, 4096, device="cuda")
    with aot.override_all():
        x.sum(1), x.amax(), x.argmax(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = (x.sum(1), x.amax(), x.argmax(1))
        for _ in range(10):
            x.copy_(torch.rand_like(x))
            graph.replay()
            wanted = (x.double().sum(1).float(), x.flatten().sort().values[-1], x.sort(1).indices[:, -1])
            torch.testing.assert_close(found[0], wanted[0])
            assert torch.equal(found[1], wanted[1])
            assert torch.equal(x.gather(1, found[2][:, None]), x.gather(1, wanted[2][:, None]))


def test_deterministic_mode() -> None:
    """Field case D11."""
    x = torch.randn(7, 1_200_001, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        with aot.override_all():
            for call in (x.sum, x.mean, x.prod, x.amax):
                first = call(1)
                assert all(torch.equal(call(1), first) for _ in range(20))
    finally:
        torch.use_deterministic_algorithms(False)


def test_lazy_conjugates_and_signs() -> None:
    x = torch.randn(50, 60, dtype=torch.complex64, device="cuda")
    with aot.override_all():
        found = x.conj().sum(1), x.conj().imag.sum(1), torch._neg_view(x.real).sum()
    wanted = x.conj().sum(1), x.conj().imag.sum(1), torch._neg_view(x.real).sum()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.no_launch
def test_no_warning() -> None:
    """Field case D01: in a process where warnings are errors, and nothing on stderr by torch itself."""
    code = (
        "import warnings, torch, aot\n"
        "torch.cuda.init()\n"
        "warnings.simplefilter('error')\n"
        "for _ in range(2):\n"
        "    with aot.override_all():\n"
        "        assert torch.ones(5, device='cuda').sum().item() == 5\n"
        "assert aot.stats()['ops']['sum']['hits'] == 2, aot.stats()\n"
    )
    env = os.environ | {"AOT_BUNDLE_PATH": os.environ.get("AOT_BUNDLE_PATH", "dist/reductions")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "verrid" not in done.stderr
