"""``aot.override`` through torch's dispatcher, for the CPU's key, with interpreted kernels."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import op_inputs
import opinfo_cases
import pytest
import torch
from test_ops_interpreter import InterpreterBackend, outcome
from torch._subclasses.fake_tensor import FakeTensorMode

import aot
from aot.errors import BundleError, KernelMiss, UsageError
from aot.loader import stats
from aot.loader.ops.aten import OVERLOADS
from aot.loader.ops.backend import use_backend
from aot.loader.ops.override import Override

pytestmark = [pytest.mark.interpreter, pytest.mark.filterwarnings("ignore:ComplexHalf support")]

ALL = tuple(OVERLOADS)


@pytest.fixture(autouse=True)
def backend() -> Iterator[InterpreterBackend]:
    found = InterpreterBackend()
    with use_backend(found):
        yield found


def overridden(*names: str) -> Override:
    return Override(names or ALL, dispatch_key="CPU")


def dispatcher() -> dict[str, str]:
    """What torch's dispatcher knows of every operator that is overridden."""
    names = [f"aten::{overload}" for overloads in OVERLOADS.values() for overload in overloads]
    return {name: torch._C._dispatch_dump(name) + torch._C._dispatch_dump_table(name) for name in names} | {
        "python": str(sorted(key for key in torch.library._impls if key.startswith("aten/")))
    }


X = op_inputs.make((4, 5), "float32", seed=2)
# Every overload that is overridden, as torch's own functions reach it, and the launches it takes.
REACHED: dict[str, Callable[[], Any]] = {
    "sum": lambda: torch.sum(X),
    "sum.out": lambda: torch.ops.aten.sum.out(X, out=torch.empty(())),
    "sum.dim_IntList": lambda: X.sum((0, 1), keepdim=True),
    "sum.IntList_out": lambda: torch.sum(X, 1, out=torch.empty(4)),
    "mean": lambda: X.mean(dtype=torch.float64),
    "mean.dtype_out": lambda: torch.ops.aten.mean.dtype_out(X, out=torch.empty(())),
    "mean.dim": lambda: X.mean(-1),
    "mean.out": lambda: torch.mean(X, 0, out=torch.empty(5)),
    "prod": lambda: X.prod(),
    "prod.out": lambda: torch.ops.aten.prod.out(X, out=torch.empty(())),
    "prod.dim_int": lambda: X.prod(1, dtype=torch.float64),
    "prod.int_out": lambda: torch.prod(X, 0, out=torch.empty(5)),
    "amax": lambda: X.amax(),
    "amax.out": lambda: torch.amax(X, 0, out=torch.empty(5)),
    "amin": lambda: X.amin((0, 1)),
    "amin.out": lambda: torch.amin(X, 0, out=torch.empty(5)),
    "max": lambda: X.max(),
    "max.unary_out": lambda: torch.max(X, out=torch.empty(())),
    "max.dim": lambda: X.max(1, keepdim=True),
    "max.dim_max": lambda: torch.max(X, 0, out=(torch.empty(5), torch.empty(5, dtype=torch.int64))),
    "min": lambda: X.min(),
    "min.unary_out": lambda: torch.min(X, out=torch.empty(())),
    "min.dim": lambda: X.min(1),
    "min.dim_min": lambda: torch.min(X, 0, out=(torch.empty(5), torch.empty(5, dtype=torch.int64))),
    "argmax": lambda: X.argmax(),
    "argmax.out": lambda: torch.argmax(X, 1, True, out=torch.empty(0, dtype=torch.int64)),
    "argmin": lambda: X.argmin(1),
    "argmin.out": lambda: torch.argmin(X, 1, out=torch.empty(4, dtype=torch.int64)),
    "any": lambda: X.any(),
    "any.dim": lambda: X.any(1),
    "any.dims": lambda: torch.any(X, (0, 1)),
    "any.out": lambda: torch.any(X, 1, out=torch.empty(4, dtype=torch.bool)),
    "any.dims_out": lambda: torch.any(X, (0, 1), out=torch.empty((), dtype=torch.bool)),
    "any.all_out": lambda: torch.any(X, out=torch.empty((), dtype=torch.bool)),
    "all": lambda: X.all(),
    "all.dim": lambda: X.all(0),
    "all.dims": lambda: torch.all(X, (0, 1)),
    "all.out": lambda: torch.all(X, 1, out=torch.empty(4, dtype=torch.bool)),
    "all.dims_out": lambda: torch.all(X, (0, 1), out=torch.empty((), dtype=torch.bool)),
    "all.all_out": lambda: torch.all(X, out=torch.empty((), dtype=torch.bool)),
}


def test_every_overload_is_tried() -> None:
    assert list(REACHED) == [overload for overloads in OVERLOADS.values() for overload in overloads]


@pytest.mark.parametrize("overload", REACHED)
def test_our_kernel_stands_behind_torchs_function(overload: str, backend: InterpreterBackend) -> None:
    wanted = REACHED[overload]()
    with overridden(overload.split(".")[0]):
        found = REACHED[overload]()
    assert len(backend.launches) == 1
    assert type(found) is type(wanted)
    for one, other in zip(_pair(found), _pair(wanted), strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        torch.testing.assert_close(one, other)


def _pair(found: Any) -> tuple[torch.Tensor, ...]:
    return tuple(found) if isinstance(found, tuple) else (found,)


def test_undone_exactly() -> None:
    """Field case D01: as if it had never been, as often as one likes, also after an error."""
    before = dispatcher()
    for _ in range(3):
        with overridden():
            assert dispatcher() != before
        assert dispatcher() == before
    with pytest.raises(ZeroDivisionError), overridden("sum"):
        _ = 1 / 0
    assert dispatcher() == before
    held = overridden("max")
    held.disable()
    held.enable()
    held.disable()
    held.disable()
    assert dispatcher() == before
    assert repr(held) == "<aot.override of max: disabled>"


def test_disjoint_sets_nest() -> None:
    before = dispatcher()
    with overridden("sum"), overridden("max") as inner:
        assert repr(inner) == "<aot.override of max: enabled>"
    assert dispatcher() == before


def test_a_second_registration_is_refused() -> None:
    """Field case D02: whoever was first stays, and nothing of the second is left behind."""
    with overridden("sum"):
        held = dispatcher()
        for second in (overridden("max", "sum"), overridden()):
            with pytest.raises(
                UsageError,
                match=r"^aot\.override: aten::sum already has a Python kernel for CPU, from another "
                r"aot\.override; undo that first, or leave 'sum' out$",
            ):
                second.enable()
            assert dispatcher() == held
    before = dispatcher()
    other = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.impl("sum.dim_IntList", lambda *args, **kwargs: None, "CPU")
    held = dispatcher()
    with pytest.raises(UsageError, match=r"aten::sum.dim_IntList already has .*, from another library; undo"):
        overridden("max", "sum").enable()
    assert dispatcher() == held
    other._destroy()
    assert dispatcher() == before


@pytest.mark.skipif(not hasattr(torch, "_native"), reason="this torch has no registry of its own")
def test_torchs_own_registry_is_respected() -> None:
    registry = torch._native.registry
    registry._install_aten_override("amax", "CPU", lambda keys, *args, **kwargs: None)
    try:
        held = dispatcher()
        with pytest.raises(
            UsageError, match=r"^aot\.override: aten::amax already .*, from torch\._native \("
        ):
            overridden("sum", "amax").enable()
        assert dispatcher() == held
        with overridden("sum"):
            pass
        assert dispatcher() == held
    finally:
        registry._destroy_aten_override("amax", "CPU")


def test_names() -> None:
    with pytest.raises(UsageError, match=r"^aot\.override: found 'summ', wanted one of sum, .*mean 'sum'\?$"):
        aot.override("summ")
    with pytest.raises(UsageError, match=r"^aot\.override: found no name, wanted some of sum, mean, "):
        aot.override()
    assert aot.override("sum", "max", "sum").names == ("sum", "max")
    assert aot.override_all().names == op_inputs.OPS


def test_no_warning_and_no_output() -> None:
    """Field case D01: not from torch's dispatcher either, which writes to stderr by itself."""
    code = (
        "from aot.loader.ops import backend\nfrom aot.loader.ops.aten import OVERLOADS\n"
        "from aot.loader.ops.override import Override\n"
        "backend.current().__class__.kernel = lambda self, name: None\n"
        "override = Override(tuple(OVERLOADS), 'CPU')\n"
        "override.enable(); override.disable(); override.enable(); override.disable()\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_a_bundle_nothing_is_registered() -> None:
    class Empty(InterpreterBackend):
        def kernel(self, name: str) -> Any:
            raise KernelMiss("nothing there", kernel=name, reasons=())

    before = dispatcher()
    with use_backend(Empty()), pytest.raises(KernelMiss, match="nothing there"):
        overridden("sum").enable()
    assert dispatcher() == before


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch has kernels for CUDA")
def test_a_build_of_torch_without_cuda() -> None:
    with pytest.raises(
        UsageError, match=r"^aot\.override: torch .* has no kernel of aten::sum\.\w+ for CUDA; ins"
    ):
        aot.override_all().enable()


def test_misses_go_to_aten(backend: InterpreterBackend) -> None:
    """Field case D01: once, to ATen's own kernel, and counted."""
    served = backend.kernel

    def missing(name: str) -> Any:
        raise KernelMiss("no variant", kernel=name, reasons=())

    wanted = {overload: reached() for overload, reached in REACHED.items()}
    before = stats.op("sum").read()["fallbacks"]
    with overridden():
        backend.kernel = missing  # type: ignore[method-assign]
        for overload, reached in REACHED.items():
            for one, other in zip(_pair(reached()), _pair(wanted[overload]), strict=True):
                assert torch.equal(one, other)
        backend.kernel = served  # type: ignore[method-assign]
        assert stats.op("sum").read()["fallbacks"] - before == 4
        assert backend.launches == []


def test_what_is_not_served_goes_to_aten(backend: InterpreterBackend) -> None:
    """Sparse and meta tensors, subclasses, the elementwise max; errors are ATen's own."""
    other = torch.rand(4, 5)
    plain = type("Plain", (torch.Tensor,), {})
    with overridden():
        torch.testing.assert_close(torch.sparse.sum(X.to_sparse()), X.cumsum(0)[-1].cumsum(0)[-1])
        launched = len(backend.launches)
        assert X.to("meta").sum(0).shape == (5,)
        with FakeTensorMode() as mode:
            assert mode.from_tensor(X).amax(0).shape == (5,)
        assert torch.equal(torch.max(X, other), torch.maximum(X, other))
        assert type(X.as_subclass(plain).sum()) is plain
        assert len(backend.launches) == launched
        with pytest.raises(
            IndexError, match=r"^Dimension out of range \(expected to be in range of \[-2, 1\]"
        ):
            X.sum(2)
        with pytest.raises(RuntimeError, match=r"could not infer output dtype"):
            X.int().mean()
        with pytest.raises(IndexError, match=r"^max\(\): Expected reduction dim 0 to have non-zero size\.$"):
            torch.empty(0, 2).max(0)
    for call in (lambda: X.sum(2), lambda: X.int().mean(), lambda: torch.empty(0, 2).max(0)):
        with overridden():
            found = outcome(call)
        assert (type(found), str(found)) == (type(outcome(call)), str(outcome(call)))


def test_more_than_aten_takes(backend: InterpreterBackend) -> None:
    x = torch.tensor([0.5, 2.0, 1.0]).to(torch.float8_e4m3fn)
    assert isinstance(outcome(x.sum), NotImplementedError)
    with overridden():
        assert x.sum().float().item() == 3.5
    assert len(backend.launches) == 1


def test_faults_are_not_hidden(backend: InterpreterBackend) -> None:
    def damaged(name: str) -> Any:
        raise BundleError("the pack is damaged")

    with overridden("sum"):
        backend.kernel = damaged  # type: ignore[method-assign]
        with pytest.raises(BundleError, match="the pack is damaged"):
            X.sum()


def test_our_own_work_does_not_come_back(backend: InterpreterBackend) -> None:
    """A kernel that itself sums, as a host function may, gets ATen's sum."""
    served = backend.kernel

    def summing(name: str) -> Any:
        assert X.sum(1).shape == (4,)
        assert torch.equal(X.amax(), X.flatten().sort().values[-1])
        return served(name)

    with overridden():
        backend.kernel = summing  # type: ignore[method-assign]
        assert X.sum().item() == pytest.approx(X.double().flatten().cumsum(0)[-1].item(), abs=1e-5)
        backend.kernel = served  # type: ignore[method-assign]
    assert len(backend.launches) == 1


@pytest.mark.slow
def test_autograd_stays_torchs(backend: InterpreterBackend) -> None:
    """Field case D03: backward, forward, second order, vmap."""
    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    for name in ("sum", "mean", "prod", "amax", "amin", "max", "min"):
        function = getattr(torch, name)
        with overridden(name):
            assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True)
            assert torch.autograd.gradgradcheck(function, (x,))
            assert function(x).grad_fn is not None
            batched = torch.vmap(function)(x.detach())
        torch.testing.assert_close(batched, torch.stack([function(row) for row in x.detach()]))
    assert backend.launches


def test_autocast_stays_torchs() -> None:
    """Field case D09: what autocast does to dtypes does not change."""
    calls = [lambda x: x.sum(), lambda x: x.prod(0), lambda x: x.mean(1), lambda x: x.amax()]
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.rand(3, 4).to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted = [call(x).dtype for call in calls]
            with overridden():
                assert [call(x).dtype for call in calls] == wanted


def test_lazy_conjugates_and_signs(backend: InterpreterBackend) -> None:
    x = torch.tensor([1 + 2j, 3 + 4j])
    with overridden():
        assert x.conj().sum().item() == 4 - 6j
        assert x.conj().imag.sum().item() == -6.0
    assert len(backend.launches) == 2


def test_deterministic_mode(backend: InterpreterBackend) -> None:
    """Field case D11: our kernels serve it, with the same bits at every call."""
    x = op_inputs.make((3, 301), "float32")
    torch.use_deterministic_algorithms(True)
    try:
        with overridden():
            first = x.sum()
            assert all(torch.equal(x.sum(), first) for _ in range(10))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(backend.launches) == 11


def test_every_thread_is_overridden(backend: InterpreterBackend) -> None:
    found = []
    with overridden("sum"):
        thread = threading.Thread(target=lambda: found.append(X.sum()))
        thread.start()
        thread.join()
    assert len(backend.launches) == 1
    torch.testing.assert_close(found[0], X.sum())


@pytest.mark.parametrize(("op", "variant"), opinfo_cases.OPS)
def test_torchs_own_samples(op: str, variant: str) -> None:
    """PyTorch's OpInfo samples under the override: ATen's results, and ATen's errors."""
    taken = opinfo_cases.dtypes_of(op, variant, "cpu")
    dtypes = [torch.float32, torch.complex64 if torch.complex64 in taken else torch.int64]
    for case in opinfo_cases.cases(op, variant, "cpu", dtypes):
        wanted = outcome(case.expected)
        with overridden():
            found = outcome(case.expected)
        if isinstance(wanted, Exception):
            assert (type(found), str(found)) == (type(wanted), str(wanted)), case.label
            continue
        assert type(found) is type(wanted), case.label
        for one, other in zip(_pair(found), _pair(wanted), strict=True):
            assert one.stride() == other.stride(), case.label
            torch.testing.assert_close(one, other, equal_nan=True, msg=case.label)
