"""``torch.ops.aot`` in compiled and exported programs and with DTensor, under the interpreter."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from test_ops_interpreter import InterpreterBackend

from aot.loader.ops import library, operation
from aot.loader.ops.backend import use_backend

pytestmark = pytest.mark.interpreter


@pytest.fixture(autouse=True)
def backend() -> Iterator[InterpreterBackend]:
    found = InterpreterBackend()
    torch._dynamo.reset()
    with use_backend(found):
        yield found


# Behind each stands something of C, as behind ``aot.ops``; it must never be called, nor traced.
total, largest, mean = (operation.face(name, operator.itemgetter(name)) for name in ("sum", "max", "mean"))


def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, indices = largest(x * 2, dim=-1)
    return total(x.sin(), -1, keepdim=True) + 1, mean(x, dim=(0, 1), dtype=torch.float64), values, indices


def eager(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, indices = torch.max(x * 2, dim=-1)
    return x.sin().sum(-1, keepdim=True) + 1, x.mean((0, 1), dtype=torch.float64), values, indices


@pytest.mark.parametrize("dynamo_backend", ["eager", "aot_eager", "inductor"])
def test_compile(dynamo_backend: str, backend: InterpreterBackend) -> None:
    """One graph, one compilation for every batch, forward and backward. Field cases D03, D05."""
    counter = torch._dynamo.testing.CompileCounterWithBackend(dynamo_backend)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for rows in (3, 7, 4):
        x = torch.rand(rows, 5)
        torch.testing.assert_close(compiled(x), eager(x))
    assert counter.frame_count == 1
    targets = {node.target for node in counter.graphs[0].graph.nodes}
    assert {torch.ops.aot.sum.default, torch.ops.aot.max.dim, torch.ops.aot.mean.default} <= targets
    assert len(backend.launches) == 9
    for rows in (3, 6):
        ours = torch.rand(rows, 5, requires_grad=True)
        theirs = ours.detach().clone().requires_grad_()
        for function, x in ((compiled, ours), (eager, theirs)):
            first, second, third, _ = function(x)
            (first.sum() + second + third.prod()).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_compile_of_inputs_from_inference_mode() -> None:
    """Field case D07."""
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.inference_mode():
        x = torch.rand(3, 5)
        torch.testing.assert_close(compiled(x), eager(x))
    torch.testing.assert_close(compiled(x), eager(x))


def test_unbacked_sizes() -> None:
    """Sizes that depend on data: nothing is asked of them."""

    def selected(x: torch.Tensor) -> torch.Tensor:
        return total(torch.nonzero(x), 0) + largest(torch.nonzero(x) + 1, 0).values

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(selected, fullgraph=True, backend="aot_eager")
        x = torch.tensor([0.0, 1.0, 2.0])
        assert compiled(x).item() == 3 + 3


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return model(x)


def exported(strict: bool) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=2, max=64)
    return torch.export.export(Model(), (torch.rand(3, 5),), dynamic_shapes={"x": {0: batch}}, strict=strict)


def test_export(tmp_path: Path) -> None:
    """Saved and loaded, with a dynamic batch."""
    program = exported(strict=True)
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    x = torch.rand(9, 5)
    torch.testing.assert_close(torch.export.load(path).module()(x), eager(x))
    lowered = program.run_decompositions()
    assert torch.ops.aot.sum.default in {node.target for node in lowered.graph.nodes}


@pytest.mark.slow
def test_aotinductor_package(tmp_path: Path, backend: InterpreterBackend) -> None:
    path = torch._inductor.aoti_compile_and_package(
        exported(strict=True), package_path=str(tmp_path / "model.pt2")
    )
    loaded = torch._inductor.aoti_load_package(path)
    for rows in (2, 9):
        x = torch.rand(rows, 5)
        torch.testing.assert_close(tuple(loaded(x)), eager(x))
    assert len(backend.launches) == 6


def test_dtensor(tmp_path: Path, backend: InterpreterBackend) -> None:
    """Field case D08: replicated, and sharded along a dimension that is kept, in a group of one."""
    import torch.distributed as distributed
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        x = torch.rand(4, 5)
        replicated = distribute_tensor(x, mesh, [Replicate()])
        rows = distribute_tensor(x, mesh, [Shard(0)])
        found = library.call("sum", (replicated, -1), {})
        assert found.placements == (Replicate(),)
        torch.testing.assert_close(found.full_tensor(), x.sum(-1))
        values, indices = library.call("max", (rows, 1), {"keepdim": True})
        assert values.placements == indices.placements == (Shard(0),)
        assert torch.equal(indices.full_tensor(), x.argmax(1, keepdim=True))
        assert library.call("mean", (rows,), {"dim": 0, "dtype": torch.float64}).placements == (Replicate(),)
        assert library.call("argmin", (rows,), {}).placements == (Replicate(),)
        assert len(backend.launches) == 4
        held = replicated.detach().requires_grad_()
        library.call("prod", (held, 1), {}).sum().backward()
        torch.testing.assert_close(held.grad.full_tensor(), x.prod(1, keepdim=True) / x)
    finally:
        distributed.destroy_process_group()
