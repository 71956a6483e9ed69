"""torch's CPU tensors in place of CUDA ones, so that the native launcher runs on a machine without a GPU.

The fake driver records what would be launched and reads no tensor, so the memory behind an
address is all the same to it. The prelude here makes the loader take CPU tensors for tensors
of GPU 0: natively by the module's own setting, in Python by two functions that ask a tensor for its
device and torch for its stream. Everything else is the code that runs in production.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundlemaker import Draft, make_bundle
from fakecuda import Run, run_script

from aot.build.plan import make_plan
from aot.build.specfile import load_specs
from aot.manifest import ParamInfo
from aot.target import Target

REDUCTIONS = Path(__file__).parent.parent / "kernel_specs" / "reductions"

PRELUDE = """
import gc, threading, weakref
import torch
from aot.loader import native, tensors, torch_adapter

NATIVE = native.module()
read_device = tensors._device_index
tensors._device_index = lambda where, device: (
    0 if getattr(device, "type", None) == "cpu" else read_device(where, device))
torch_adapter.current_stream = lambda device: 0
native.with_torch()
if NATIVE is not None:
    native.configure(NATIVE, torch, torch.Tensor.__dlpack_c_exchange_api__, "cpu")

LABELS, KEPT = {}, []
LOG = open(os.environ["FAKECUDA_LOG"])
lines = 0

def now():
    '''How many calls the driver has recorded.'''
    global lines
    lines += len(LOG.readlines())
    return lines

def tag(label, found, since=None):
    '''Keep a tensor, or a tuple of them, and give its address a name in the launches from now on.'''
    for i, tensor in enumerate(found if isinstance(found, tuple) else (found,)):
        LABELS[tensor.data_ptr()] = now() if since is None else since, label + (
            f".{i}" if isinstance(found, tuple) else "")
    KEPT.append(found)
    return found

def shown(found):
    '''A result as data: what a caller could tell it by, but for its address.'''
    if isinstance(found, torch.Tensor):
        return [type(found).__name__, str(found.dtype), list(found.shape), list(found.stride()),
                found.requires_grad, found.is_inference(), None if found.is_inference() else found._version,
                found.data_ptr() % 16]
    if isinstance(found, (tuple, list)):
        return [type(found).__module__, type(found).__qualname__, *map(shown, found)]
    if hasattr(found, "variant"):
        return [type(found).__name__, found.binary.cubin.sha256]
    return repr(found)

def outcome(label, function, *args, **kwargs):
    '''What a call returns or raises, as data; its result is tagged.'''
    since = now()
    try:
        found = function(*args, **kwargs)
    except Exception as raised:
        return [type(raised).__name__, str(raised)]
    parts = found if isinstance(found, tuple) else (found,)
    if all(isinstance(part, torch.Tensor) and part.layout == torch.strided for part in parts):
        try:
            tag(label, found, since)
        except RuntimeError:
            pass  # A wrapper without memory.
    return shown(found)

def at(offset, *shape, dtype=torch.float32):
    '''A tensor whose address is ``offset`` elements behind a multiple of 64 bytes.'''
    count = 1
    for size in shape:
        count *= size
    item = torch.empty(0, dtype=dtype).element_size()
    base = torch.zeros(count + offset + 64, dtype=dtype)
    skip = -(base.data_ptr() // item) % (64 // item) + offset
    KEPT.append(base)
    return base[skip : skip + count].view(shape)

def finish(value, **served):
    '''``served`` are numbers that only the native launcher has: None in Python.'''
    answer({"value": value, "labels": LABELS, "served": served if NATIVE is not None else None})
"""

OPS = (
    PRELUDE
    + """
import aot.ops
from aot import ops
from aot.loader.ops import backend
from aot.loader.ops.splits import SplitPolicy

class Cpu(backend.CudaBackend):
    device_type = "cpu"
    def policy(self, device):
        return SplitPolicy(processors=132)
    def stream(self, device):
        return super().stream(torch.device("cuda", 0))

backend._current = Cpu()
BUNDLE = aot.use(PATH)

def served_natively(*names):
    return sum(getattr(ops, name).remembering.hits for name in names) if NATIVE is not None else 0
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """A script's answer by the native launcher and by Python: ``value`` is that of both."""

    value: Any
    served: dict[str, Any]
    launches: list[dict[str, Any]]
    native: Run
    python: Run


def launches(run: Run, *, ops: bool = False) -> list[dict[str, Any]]:
    """The launches with names for addresses. Memory of the loader's own, where a reduction has it,
    shows only its alignment."""
    labels = {int(address): label for address, label in run.value["labels"].items()}
    found = []
    for at, launch in enumerate(run.calls):
        if not launch["call"].startswith("cuLaunchKernel") or "symbol" not in launch:
            continue
        own, pointers = OWN[launch["symbol"].split("_")[0]] if ops else ((), 0)
        params = []
        for i, data in enumerate(launch["params"]):
            number = int.from_bytes(bytes.fromhex(data), "little")
            since, label = labels.get(number, (len(run.calls), ""))
            if i not in own and len(data) == 16 and since <= at:
                params.append(label)
            elif i < pointers:
                params.append(f"own, {number % 16}")
            else:
                params.append(data)
        found.append({**launch, "params": params})
    return found


# Which parameters of the reductions are the loader's own memory, and how many are pointers.
OWN = {"reduce": ((2, 3), 4), "argreduce": ((3, 4, 5), 6)}


def difference(native: Any, python: Any) -> str:
    """The first parts of two answers that differ."""
    if isinstance(native, dict) and isinstance(python, dict):
        for key in {**native, **python}:
            if native.get(key) != python.get(key):
                return f"{key}: {difference(native.get(key), python.get(key))}"
    return f"natively {native}\nin Python {python}"


def make_both(driver: Path) -> Callable[..., Both]:
    """A function that runs a script both ways and insists on the same answer and the same launches."""

    def both(script: str, bundle: Path, *, ops: bool = False, **how: Any) -> Both:
        env = how.pop("env", {})
        prelude = OPS if ops else PRELUDE
        native, python = (
            run_script(
                driver, prelude + textwrap.dedent(script), bundle, env={"AOT_NATIVE": mode} | env, **how
            )
            for mode in ("1", "0")
        )
        found = native.value["value"], python.value["value"]
        assert found[0] == found[1], difference(*found)
        launched, wanted = launches(native, ops=ops), launches(python, ops=ops)
        different = [pair for pair in zip(launched, wanted, strict=False) if pair[0] != pair[1]]
        assert not different, f"natively {different[0][0]}\nin Python {different[0][1]}"
        assert len(launched) == len(wanted)
        return Both(
            value=native.value["value"],
            served=native.value["served"],
            launches=launched,
            native=native,
            python=python,
        )

    return both


def reductions_without_code(path: Path, *dtypes: str) -> Path:
    """A bundle with every shipped reduction of ``dtypes`` for sm_90, planned from its spec; the cubins have
    the kernels' parameters and no code, which nothing here runs."""
    plan = make_plan(load_specs([REDUCTIONS]), (Target.parse("sm_90"),), {"dtype": dtypes})
    drafts = []
    for kernel in plan.kernels:
        first = kernel.variants[0].variant
        drafts.append(
            Draft(
                name=kernel.spec.kernel,
                variants=[planned.variant for planned in kernel.variants],
                params=[
                    ParamInfo(name=arg.name, kind=_KINDS[type(arg).__name__])  # type: ignore[arg-type]
                    for arg in first.args
                ],
                binary={"symbol": f"{kernel.spec.kernel}_kernel", "salt": kernel.spec.kernel.encode()},
            )
        )
    return make_bundle(path, *drafts)


_KINDS = {"PointerArg": "pointer", "ScalarArg": "scalar", "ConstexprArg": "constexpr"}
