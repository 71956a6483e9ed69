"""What an op does that no kernel serves: an error by default, torch's own op where that was chosen."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import aot
from aot.errors import KernelMiss, NoBundleError, UsageError
from aot.loader import discovery, fallback, stats
from aot.loader.fallback import serve_miss
from aot.loader.ops.backend import CudaBackend, use_backend
from aot.loader.ops.splits import SplitPolicy


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mode is set, nothing was logged or counted."""
    monkeypatch.delenv("AOT_FALLBACK", raising=False)
    monkeypatch.setattr(fallback, "_mode", None)
    monkeypatch.setattr(fallback, "_logged", set())
    monkeypatch.setattr(stats, "_counters", {"ops": {}, "kernels": {}})


def missed(kind: str = "dtype") -> KernelMiss:
    return KernelMiss("kernel 'k' has no variant\nmore", kernel="k", reasons=("r",), kind=kind)


def counted(op: str) -> tuple[float, float]:
    row = aot.stats()["ops"][op]
    return row["misses"], row["fallbacks"]


def test_strict_by_default() -> None:
    error = missed()
    with pytest.raises(KernelMiss) as raised:
        serve_miss("sum", (torch.ones(3),), {}, error)
    assert raised.value is error
    assert counted("sum") == (1, 0)


def test_eager(caplog: pytest.LogCaptureFixture) -> None:
    """The same arguments, torch's result, counted each time and logged once a kind."""
    x = torch.arange(6.0).reshape(2, 3)
    aot.fallback("eager")
    with caplog.at_level(logging.WARNING, "aot"):
        for _ in range(3):
            result = serve_miss("sum", (x,), {"dim": -1, "keepdim": True}, missed())
            assert torch.equal(result, x.sum(-1, keepdim=True))
        values, indices = serve_miss("max", (x, 1), {}, missed("target"))
        assert (values.tolist(), indices.tolist()) == ([2.0, 5.0], [2, 2])
        out = torch.empty(2)
        assert serve_miss("sum", (), {"input": x, "dim": 1, "out": out}, missed("bound")) is out
        serve_miss("sum", (x.double(),), {}, missed())
        serve_miss("sum", (x,), {}, NoBundleError("found no bundle"))
    assert counted("sum") == (6, 6)
    assert counted("max") == (1, 1)
    again = "served by torch ({}), now and whenever it happens again: {}"
    text = "kernel 'k' has no variant\nmore"
    assert caplog.messages == [
        "aot.ops.sum of float32 is " + again.format("dtype", text),
        "aot.ops.max of float32 is " + again.format("target", text),
        "aot.ops.sum of float32 is " + again.format("bound", text),
        "aot.ops.sum of float64 is " + again.format("dtype", text),
        "aot.ops.sum of float32 is " + again.format("no bundle", "found no bundle"),
    ]


def test_errors_of_torch_are_its_own() -> None:
    """What torch refuses is refused as torch does, and the next call is right."""
    aot.fallback("eager")
    with pytest.raises(IndexError, match="Dimension out of range"):
        serve_miss("sum", (torch.ones(3), 5), {}, missed())
    assert serve_miss("sum", (torch.ones(3),), {}, missed()) == 3


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((None,), {}),
    ((None, False), {"out": None}),
    ((None, True), {}),
    ((), {"keepdim": True}),
    ((), {"keepdim": False}),
    ((1,), {}),
    ((-1, True), {"out": None}),
    ((), {"dim": 0, "keepdim": True}),
]


@pytest.mark.parametrize("name", aot.ops.__all__)
@pytest.mark.parametrize("shape", [(2, 3), (2, 1, 4), ()])
def test_every_call_that_our_op_takes(name: str, shape: tuple[int, ...]) -> None:
    """Also those that torch's function has no spelling for: a ``dim`` of None, ``keepdim`` alone."""
    x = torch.testing.make_tensor(shape, dtype=torch.float64, device="cpu")
    function = getattr(torch, name)
    aot.fallback("eager")
    for args, kwargs in CALLS:
        dim = args[0] if args else kwargs.get("dim")
        keepdim = args[1] if len(args) > 1 else kwargs.get("keepdim", False)
        if dim == 1 and len(shape) < 2:
            continue
        result = serve_miss(name, (x, *args), kwargs, missed())
        wanted = function(x) if dim is None else function(x, dim, keepdim)
        if dim is None and keepdim:
            wanted = wanted.reshape((1,) * len(shape))
        if isinstance(wanted, tuple):
            assert torch.equal(result.values, wanted.values)
            assert torch.equal(result.indices, wanted.indices)
        else:
            assert result.shape == wanted.shape
            torch.testing.assert_close(result, wanted)


def test_dtype_and_out() -> None:
    x = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    aot.fallback("eager")
    for name in ("sum", "prod", "mean"):
        wanted = getattr(torch, name)(x, dtype=torch.float64)
        assert torch.equal(serve_miss(name, (x,), {"dtype": torch.float64}, missed()), wanted)
        found = serve_miss(name, (x, None, True), {"dtype": torch.float64}, missed())
        assert torch.equal(found, wanted.reshape(1, 1))
    for name in ("sum", "prod", "max", "amax"):
        out = torch.empty(0, dtype=torch.int64 if name in ("sum", "prod") else torch.int32)
        assert serve_miss(name, (x, None, True), {"out": out}, missed()) is out
        assert torch.equal(out, getattr(torch, name)(x).reshape(1, 1))


class Through(TorchDispatchMode):
    """Sees every call of torch's and changes none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class OnCpu(CudaBackend):
    """The default bundles' backend for tensors of this machine, on which nothing is ever launched."""

    device_type = "cpu"

    def policy(self, device: torch.device) -> SplitPolicy:
        return SplitPolicy(processors=4)

    def stream(self, device: torch.device) -> int:
        return 0


def test_ops_without_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """``aot.ops`` itself: strict says that there is no bundle, eager goes on, also with a gradient."""
    monkeypatch.delenv("AOT_BUNDLE_PATH", raising=False)
    monkeypatch.setattr(discovery, "_search", discovery._Search(None))
    x = torch.arange(6.0).reshape(2, 3)
    with use_backend(OnCpu()):
        with pytest.raises(NoBundleError):
            aot.ops.sum(x, -1)
        with aot.fallback("eager"):
            assert torch.equal(aot.ops.sum(x, -1), x.sum(-1))
            assert torch.equal(aot.ops.max(x, dim=1).indices, torch.tensor([2, 2]))
            y = x.clone().requires_grad_()
            aot.ops.sum(y * y, dim=-1).sum().backward()
            assert torch.equal(y.grad, 2 * x)
            out = torch.empty(2)
            with torch.no_grad():
                assert aot.ops.sum(y, -1, out=out) is out
            with Through():
                assert aot.ops.sum(x, -1, out=out) is out
            assert torch.equal(out, x.sum(-1))
        with pytest.raises(NoBundleError):
            aot.ops.sum(x, -1)


def test_no_function_of_that_name() -> None:
    aot.fallback("eager")
    with pytest.raises(KernelMiss):
        serve_miss("add_rms_norm", (torch.ones(3),), {}, missed())
    assert counted("add_rms_norm") == (1, 0)


def test_torch_function_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our op stands behind torch's, its second miss is an error and no endless recursion."""
    real = torch.sum

    def overridden(x: torch.Tensor) -> torch.Tensor:
        try:
            return serve_miss("sum", (x,), {}, missed())
        except KernelMiss:
            return real(x)

    monkeypatch.setattr(torch, "sum", overridden)
    aot.fallback("eager")
    assert serve_miss("sum", (torch.ones(3),), {}, missed()) == 3
    assert counted("sum") == (2, 1)


def test_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call holds, a block ends, in every thread; the variable only says where nothing else does."""
    assert fallback.mode() == "strict"
    monkeypatch.setenv("AOT_FALLBACK", "eager")
    assert fallback.mode() == "eager"
    with aot.fallback("strict"):
        assert fallback.mode() == "strict"
        with aot.fallback("eager"):
            seen: list[str] = []
            thread = threading.Thread(target=lambda: seen.append(fallback.mode()))
            thread.start()
            thread.join()
            assert seen == ["eager"]
        assert fallback.mode() == "strict"
    assert fallback.mode() == "eager"
    with pytest.raises(ZeroDivisionError), aot.fallback("strict"):
        1 / 0  # noqa: B018
    assert fallback.mode() == "eager"
    aot.fallback("strict")
    assert fallback.mode() == "strict"


def test_words_that_are_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    aot.fallback("strict")
    with pytest.raises(UsageError) as raised:
        aot.fallback("eagr")  # type: ignore[arg-type]
    assert str(raised.value) == "aot.fallback: found 'eagr', wanted strict or eager; did you mean 'eager'?"
    with pytest.raises(UsageError, match="found None, wanted strict or eager"):
        aot.fallback(None)  # type: ignore[arg-type]
    assert fallback.mode() == "strict"
    monkeypatch.setattr(fallback, "_mode", None)
    monkeypatch.setenv("AOT_FALLBACK", "1")
    with pytest.raises(UsageError) as raised:
        serve_miss("sum", (torch.ones(3),), {}, missed())
    assert str(raised.value) == "AOT_FALLBACK: found '1', wanted strict or eager"
    monkeypatch.setenv("AOT_FALLBACK", "")
    assert fallback.mode() == "strict"


def test_torch_is_not_imported() -> None:
    """Without torch there is nothing to fall back to, and nothing is imported to find out."""
    code = (
        "import sys, aot\nfrom aot.errors import KernelMiss\nfrom aot.loader.fallback import serve_miss\n"
        "aot.fallback('eager')\n"
        "try:\n    serve_miss('sum', (1,), {}, KernelMiss('m', kernel='k', reasons=()))\n"
        "except KernelMiss as error:\n    print(error, 'torch' in sys.modules)\n"
    )
    env = {**os.environ, "AOT_FALLBACK": "eager"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("m False\n", "")
