"""Streams, devices and shared workspaces of the native launcher, against the fake driver.

torch's exchange API is put behind one that says "CUDA" of each tensor, on the device and with the
current stream that the script chooses; Python is told the same by its own functions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bundlemaker import make_bundle
from cputensors import Both, make_both
from loaderscripts import simple

pytest.importorskip("aot.loader._native")

CHOSEN = """
import ctypes
from msgspec.structs import replace

STREAM, DEVICES = [0], {}

class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32)]

class Api(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)] + [
        (name, ctypes.c_void_p) for name in ("previous", "allocator", "of", "to", "view", "stream")]

Reads = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(View))
Asks = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype = ctypes.py_object
capsule_of.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

if NATIVE is not None:
    real = Api.from_address(pointer_of(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
    read = Reads(real.view)

    @Reads
    def view(tensor, out):
        status = read(tensor, out)
        out[0].device_type, out[0].device = 2, DEVICES.get(out[0].data, 0)
        return status

    @Asks
    def ask(device_type, device, out):
        out[0] = STREAM[0] + device
        return 0

    api = Api(major=1, view=ctypes.cast(view, ctypes.c_void_p), stream=ctypes.cast(ask, ctypes.c_void_p))
    name = b"dlpack_exchange_api"
    capsule = capsule_of(ctypes.addressof(api), name, None)
    module_configure = NATIVE.configure
    class Door:
        compare_dtypes, enable = NATIVE.compare_dtypes, NATIVE.enable
        def configure(self, **given):
            module_configure(**given | {"device_type": 2})
    native.configure(Door(), torch, capsule, "cpu")

read_tensor = tensors._read_tensor
def read_with_device(where, value):
    found = read_tensor(where, value)
    return replace(found, device=DEVICES.get(found.address, found.device))
tensors._read_tensor = read_with_device
torch_adapter.current_stream = lambda device: STREAM[0] + device
"""

# What native code was given to share: addresses and bytes of counters and partial results by stream.
SHARED = """
from aot.loader.ops import direct, workspace
GIVEN, OWNERS = [], []
provide = workspace._shared
def shared(device, stream, count, size):
    found = provide(device, stream, count, size)
    assert found[1] >= count and found[3] >= size
    GIVEN.append((stream, found[0], 4 * found[1], found[2], found[3]))
    OWNERS.append([weakref.ref(tensor) for tensor in found[4] or ()])
    return found
if NATIVE is not None:
    workspace.provide()
    NATIVE.provide_workspace(shared)
"""


@pytest.mark.parametrize("memory", ["cpu", "cuda"])
def test_workspaces_of_streams(driver: Path, reductions: Path, memory: str) -> None:
    """Every split launch gets counters and room enough, of its own stream; what was torch's goes again,
    what is the driver's was set to zero on that stream."""
    result: Both = make_both(driver)(
        CHOSEN
        + SHARED
        + f"native.device_type = {memory!r}\n"
        + """
calls = {"one": (tag("one", at(0, 1 << 18)), ()), "many": (tag("many", at(0, 1 << 21, dtype=torch.int8)), ()),
         "rows": (tag("rows", at(0, 100, 1 << 14)), (1,)),
         "columns": (tag("columns", at(0, 1 << 12, 2048)), (0,))}
needs = []
values = []
for stream in (0, 11, 12, 11, 0):
    STREAM[0] = stream
    for name in ("one", "rows", "many", "columns", "one"):
        x, args = calls[name]
        for function in (ops.sum, ops.max) if args else (ops.sum, ops.argmax):
            plan = direct.CALLS[function.__name__].function.plan(x, *args).plan
            for i in range(2):
                values.append(outcome(f"{stream} {name} {len(values)}", function, x, *args))
                needs.append((stream, plan.n_splits, plan.n_out, now()))
held = ops.sum.prepare(calls["one"][0])
for STREAM[0] in (11, 13):
    values.append(outcome(f"held {STREAM[0]}", held, calls["one"][0]))
dead = [all(ref() is None for ref in refs) for refs in OWNERS]
last = {given[0]: i for i, given in enumerate(GIVEN)}
if native.device_type == "cpu":
    values.append(all(dead[i] == (i not in last.values()) for i in range(len(GIVEN))))
finish(values, given=GIVEN, splits=[n for _, n, *_ in needs], hits=served_natively("sum", "max", "argmax"))
""",
        reductions,
        ops=True,
    )
    assert min(result.served["splits"]) > 1
    assert result.served["hits"] >= 70
    given = result.served["given"]
    assert {stream for stream, *_ in given} == {0, 11, 12, 13}
    native = 0
    for launch in result.native.launches:
        numbers = [int.from_bytes(bytes.fromhex(data), "little") for data in launch["params"]]
        argument = launch["symbol"].startswith("arg")
        partial, counter, n_out = (numbers[i] for i in ((3, 5, 6) if argument else (2, 3, 4)))
        mine = [g for g in given if g[0] == launch["stream"] and g[1] == counter]
        for _, _, counter_bytes, start, size in mine:
            native += 1
            assert 4 * n_out <= counter_bytes
            assert start <= partial < start + size
            if argument:
                assert partial < numbers[4] < start + size
        others = [g for g in given if g[0] != launch["stream"] and g[1] == counter and not mine]
        assert not others
    assert native >= result.served["hits"]
    zeroed = {(c["stream"], c["address"], 4 * c["count"]) for c in result.native.named("cuMemsetD32Async")}
    assert zeroed == ({tuple(g[:3]) for g in given} if memory == "cuda" else set())


def test_captures_and_failing_allocations(driver: Path, reductions: Path) -> None:
    result: Both = make_both(driver)(
        CHOSEN
        + SHARED
        + """
x, big = tag("x", at(0, 6, 40)), tag("big", at(0, 1 << 18))
values, served = {}, {}
def case(what, function, *args):
    before = served_natively("sum")
    values[what] = [outcome(f"{what} {i}", function, *args) for i in range(2)]
    served[what] = served_natively("sum") - before
STREAM[0] = 21
case("warm", ops.sum, x, 1), case("warm split", ops.sum, big)
os.environ["FAKECUDA_CAPTURING"] = "21"
case("captured", ops.sum, x, 1), case("captured split", ops.sum, big)
STREAM[0] = 22
case("another stream", ops.sum, big)
del os.environ["FAKECUDA_CAPTURING"]
STREAM[0] = 21
case("after it", ops.sum, big)

def refuse(*args):
    raise MemoryError("no memory")
if NATIVE is not None:
    NATIVE.provide_workspace(refuse)
    STREAM[0] = 23
    try:
        ops.sum(big)
    except MemoryError as error:
        assert str(error) == "no memory"
    else:
        raise AssertionError("a workspace came from nowhere")
    for wrong in (lambda *a: None, lambda *a: (1, 2), lambda *a: ("a", 1, 2, 3, None)):
        NATIVE.provide_workspace(wrong)
        try:
            ops.sum(big)
        except (TypeError, SystemError):
            pass
        else:
            raise AssertionError("a workspace came from nowhere")
    # One that makes the same call, ends every table and collects garbage while it is asked.
    def again(*args):
        NATIVE.provide_workspace(shared)
        outcome("inside", ops.sum, big)
        native.invalidate()
        gc.collect()
        return shared(*args)
    NATIVE.provide_workspace(again)
    outcome("again", ops.sum, big)
else:
    STREAM[0] = 23
    outcome("inside", ops.sum, big), outcome("again", ops.sum, big)
case("then", ops.sum, big)
finish(values, **served)
""",
        reductions,
        ops=True,
    )
    assert result.served["captured"] == 2
    assert result.served["captured split"] == 0
    assert result.served["another stream"] == result.served["after it"] == 2
    assert result.served["then"] >= 1


def test_devices(driver: Path, tmp_path: Path) -> None:
    """The tensors' device and torch's stream there, whatever context is current, in any thread."""
    result: Both = make_both(driver)(
        CHOSEN
        + """
from aot.loader.driver import get_driver
kernel = aot.open(PATH).kernel("k")
x, y = tag("x", at(0, 32)), tag("y", at(0, 32))
DEVICES[y.data_ptr()] = 1
STREAM[0] = 30
values = []
def launch():
    for i in range(2):
        for tensor in (x, y):
            values.append(outcome("", kernel[(1,)], tensor, 16))
    values.append(outcome("", held, y))
    values.append(outcome("", held, x))
kernel[(1,)](x, 16), kernel[(1,)](y, 16)
held = kernel.prepare((1,), y, 16)
driver = get_driver()
launch()
for index in (0, 1):
    with driver.current(driver.device(index)):
        launch()
        values.append(driver._cu.current_context()[1] == driver.device(index).context)
thread = threading.Thread(target=launch)
thread.start(), thread.join()
values.append(driver._cu.current_context()[1])
fixed = kernel.with_stream(7)
for i in range(3):
    values.append(outcome("", fixed[(1,)], y, 16))
finish(values, hits=native.kernel_tally("k").hits if NATIVE is not None else 0)
""",
        make_bundle(tmp_path / "bundle", simple()),
        devices="9.0,9.0",
    )
    assert {(launch["device"], launch["stream"]) for launch in result.launches} == {(0, 30), (1, 31), (1, 7)}
    assert result.served["hits"] == 4 * 5 + 2
    assert "prepared for cuda:1" in str(result.value)
