"""Prepared calls over time: what ends them, what fails, and what threads, streams and memory do to them.

Every script runs by the native launcher and by Python, with the same answer and launches.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cputensors import OPS, Both, make_both
from fakecuda import run_script

pytest.importorskip("aot.loader._native")


def test_held_calls(driver: Path, reductions: Path) -> None:
    result: Both = make_both(driver)(
        """
        x = tag("x", at(0, 4, 4096))
        held, both, split = ops.sum.prepare(x, 1), ops.max.prepare(x, dim=1), ops.sum.prepare(x)
        pair = (tag("pv", at(0, 4)), tag("pn", at(0, 4, dtype=torch.int64)))
        half = ops.sum.prepare(at(0, 4, 4096, dtype=torch.float16), 1)
        c = at(0, 4, 8192, dtype=torch.complex64)
        lazy = ops.sum.prepare(c[:, ::2].conj(), 1)
        bare = ops.sum.prepare(tag("mis", at(1, 4, 4096)), 1)
        values = {"repr": [repr(h) for h in (held, both, split, half)]}
        calls = {
            "same": (held, (x,), {}),
            "another": (held, (tag("y", at(0, 4, 4096)),), {}),
            "out": (held, (x,), {"out": tag("o", at(0, 4))}),
            "out is None": (held, (x,), {"out": None}),
            "out misaligned": (held, (x,), {"out": tag("om", at(1, 4))}),
            "out of another shape": (held, (x,), {"out": tag("os", at(0, 5))}),
            "out of another dtype": (held, (x,), {"out": tag("oh", at(0, 4, dtype=torch.float16))}),
            "out in the input": (held, (x,), {"out": x[0, :4]}),
            "out is no tensor": (held, (x,), {"out": 1}),
            "both": (both, (x,), {}),
            "both, out": (both, (x,), {"out": pair}),
            "both, one out": (both, (x,), {"out": at(0, 4)}),
            "split": (split, (x,), {}),
            "split, out": (split, (x,), {"out": tag("so", at(0, 1)).view(())}),
            "dtype": (held, (at(0, 4, 4096, dtype=torch.float16),), {}),
            "shape": (held, (at(0, 4, 4095),), {}),
            "rank": (held, (at(0, 4096),), {}),
            "strides": (held, (at(0, 4096, 4).t(),), {}),
            "alignment": (held, (at(1, 4, 4096),), {}),
            "better alignment": (bare, (x,), {}),
            "device": (held, (torch.empty(4, 4096, device="meta"),), {}),
            "nothing": (held, (), {}),
            "two": (held, (x, x), {}),
            "keyword": (held, (x,), {"dim": 1}),
            "out by position": (held, (x, at(0, 4)), {}),
            "input by name": (held, (), {"input": x}),
            "no tensor": (held, ([1.0],), {}),
            "lazy": (lazy, (tag("c", c)[:, ::2],), {}),
            "short, alignment": (ops.sum.prepare(at(0, 6, 40), 1), (at(1, 6, 40),), {}),
        }
        served = {}
        kernels = [native.kernel_tally(n) for n in ("reduce_rows", "argreduce_rows")] if NATIVE else []
        for what, (call, args, kwargs) in calls.items():
            before = sum(tally.hits for tally in kernels)
            values[what] = [outcome(f"{what}, {i}", call, *args, **kwargs) for i in range(2)]
            served[what] = sum(tally.hits for tally in kernels) - before
        values["same out"] = held(x, out=pair[0]) is pair[0]
        BUNDLE.close()
        values["closed"] = outcome("closed", held, x), outcome("", ops.sum, x, 1)[1].replace(PATH, "BUNDLE")
        values["refused"] = [
            outcome("", ops.sum.prepare, *args) for args in ((x, 7), (), (None,))]
        finish(values, entry=held.entry.variant.kernel if NATIVE is not None else None, **served)
        """,
        reductions,
        ops=True,
    )
    assert result.served.pop("entry") == "reduce_rows"
    assert {what for what, count in result.served.items() if count == 2} == {
        *("same", "another", "out", "out is None", "both", "split", "split, out", "better alignment"),
        *(("out misaligned",) if result.value["out misaligned"][0][0] == "Tensor" else ()),
    }
    for what in ("dtype", "shape", "strides", "alignment", "short, alignment"):
        kind, message = result.value[what][0]
        assert kind == "LaunchError", message
        assert "prepare" in message
    assert result.value["closed"][0][0] == "Tensor"
    assert "was closed" in result.value["closed"][1]


def test_what_ends_a_prepared_call(driver: Path, reductions: Path) -> None:
    """Another bundle, another backend, a closed bundle: no call is served by what was before."""
    result: Both = make_both(driver)(
        """
        import shutil
        other = f"{PATH}-{os.getpid()}"
        shutil.copytree(PATH, other)
        x = tag("x", at(0, 6, 40))
        values = []
        def call(what):
            outcomes = [outcome(what, ops.sum, x, 1), outcome(what, ops.sum, x, 1)]
            values.append([what, [o[:2] for o in outcomes], [b.stats()["launches"] for b in bundles]])
        bundles = [BUNDLE, aot.open(other)]
        call("first")
        aot.use(bundles[1])
        call("other bundle")
        aot.use(bundles[0])
        call("first again")
        class Refuses(Cpu):
            def kernel(self, name):
                raise RuntimeError("refused")
            def hold(self, *args):
                raise RuntimeError("refused")
        with backend.use_backend(Refuses()):
            call("refusing backend")
        call("the backend before")
        aot.loader.discovery.refresh()
        call("refreshed")

        # The bundle is put away while a call is on its way: what it prepared is not kept.
        hold = Cpu.hold
        def hold_and_leave(self, *args):
            found = hold(self, *args)
            aot.use(bundles[1])
            return found
        Cpu.hold = hold_and_leave
        y = tag("y", at(0, 7, 40))
        ops.sum(y, 1)
        Cpu.hold = hold
        values.append(["left meanwhile", [b.stats()["launches"] for b in bundles]])
        ops.sum(y, 1), ops.sum(y, 1)
        values.append(["after it", [b.stats()["launches"] for b in bundles]])
        bundles[1].close()
        values.append([outcome("", ops.sum, x, 1)[1].replace(other, "BUNDLE"),
                       outcome("", ops.sum, y, 1)[1].replace(other, "BUNDLE")])
        aot.use(bundles[0])
        call("at last")
        finish(values, native=served_natively("sum"))
        """,
        reductions,
        ops=True,
    )
    launches = {what: counts for what, *_, counts in result.value if what != "left meanwhile" and counts}
    assert launches["first"] == [2, 0]
    assert launches["other bundle"] == [2, 2]
    assert launches["first again"] == launches["refusing backend"] == [4, 2]
    assert launches["refreshed"] == [8, 2]
    assert launches["after it"] == [9, 4]
    assert result.served["native"] >= 6


def test_forks(driver: Path, reductions: Path) -> None:
    """Before the first use the child works, natively too; after it, it is told, and the parent goes on."""
    make_both(driver)(
        """
        x = tag("x", at(0, 6, 40))
        def child(function):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(write, json.dumps(function()).encode())
                os._exit(0)
            os.close(write)
            os.waitpid(pid, 0)
            return json.loads(os.read(read, 10000).decode().replace(str(pid), "CHILD"))
        def early():
            found = [outcome("r", ops.sum, x, 1)[0] for i in range(3)]
            return found, NATIVE is None or served_natively('sum') == 2
        early = child(early)
        for i in range(3):
            outcome("r", ops.sum, x, 1)
        held = ops.sum.prepare(x, 1)
        def late():
            from aot.loader import record
            native.pause(True), native.pause(False)
            return outcome("r", ops.sum, x, 1), outcome("r", ops.sum, x, 1), outcome("r", held, x)
        late = child(late)
        after = [outcome("r", ops.sum, x, 1)[0], outcome("r", held, x)[0]]
        told = [message.replace(str(os.getpid()), "PARENT") for kind, message in late]
        assert len(set(told)) == 1 and "CHILD) was forked from process PARENT after" in told[0], told
        finish([early, late[0][0], after])
        """,
        reductions,
        ops=True,
    )


def test_driver_errors_and_contexts(driver: Path, reductions: Path) -> None:
    """One error each, in the words of Python; the next call is right; the context is as it was."""
    make_both(driver)(
        """
        x, big = tag("x", at(0, 6, 40)), tag("big", at(0, 1 << 18))
        for i in range(2):
            outcome("r", ops.sum, x, 1), outcome("r", ops.sum, big)
        held = ops.sum.prepare(x, 1)
        values = {}
        calls = {"op": (ops.sum, x, 1), "split": (ops.sum, big), "held": (held, x)}
        for fail in ("cuLaunchKernel:701", "cuLaunchKernel:700", "cuCtxGetCurrent:3", "cuCtxPushCurrent:201",
                     "cuStreamIsCapturing:700"):
            for what, (function, *args) in calls.items():
                os.environ["FAKECUDA_FAIL"] = fail
                failed = outcome("r", function, *args)
                del os.environ["FAKECUDA_FAIL"]
                values[f"{fail}, {what}"] = failed, outcome("r", function, *args)[0]
        from aot.loader.driver import get_driver
        driver = get_driver()
        values["context"] = driver._cu.current_context()[1]
        with driver.current(driver.device(1)):
            outcome("r", ops.sum, x, 1), outcome("r", held, x)
            values["inside"] = driver._cu.current_context()[1] == driver.device(1).context
        with driver.current(driver.device(0)):
            outcome("r", ops.sum, x, 1), outcome("r", held, x)
        thread = threading.Thread(target=lambda: values.update(thread=outcome("r", ops.sum, x, 1)[0]))
        thread.start(), thread.join()
        finish(values, native=served_natively("sum"))
        """,
        reductions,
        ops=True,
        devices="9.0:NVIDIA H200,9.0:NVIDIA H200",
    )


@pytest.mark.slow
def test_threads(driver: Path, reductions: Path) -> None:
    """Every call of every thread is served and counted, while others invalidate what is prepared."""
    result: Both = make_both(driver)(
        """
        import sys
        sys.setswitchinterval(1e-5)
        inputs = [tag(f"x{i}", at(0, 3 + i, 40)) for i in range(8)]
        big = tag("big", at(0, 1 << 18))
        start, wrong = threading.Barrier(16), []
        def work(index):
            start.wait()
            for i in range(150):
                x = inputs[(index + i) % 8]
                y = ops.sum(x, 1) if i % 10 else ops.sum(big)
                if y.shape != (x.shape[:1] if i % 10 else ()):
                    wrong.append((index, i))
                if index == 0 and i % 25 == 0:
                    native.invalidate()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads], [t.join() for t in threads]
        row = aot.stats()["ops"]["sum"]["hits"], aot.stats()["kernels"]["reduce_rows"]["launches"]
        total = len([line for line in open(os.environ["FAKECUDA_LOG"]) if '"symbol"' in line
                     and "cuLaunchKernel" in line])
        open(os.environ["FAKECUDA_LOG"], "w").close()
        finish([wrong, row, total, BUNDLE.stats()["launches"]], native=served_natively("sum"))
        """,
        reductions,
        ops=True,
    )
    assert result.value == [[], [2400, 2400], 2400, 2400]
    assert result.served["native"] > 2000


@pytest.mark.slow
def test_random_sequences(driver: Path, reductions: Path) -> None:
    """Any sequence of calls launches the same natively as in Python."""
    make_both(driver)(
        """
        import random
        chance = random.Random(5)
        pool = []
        for dtype in (torch.float32, torch.int8, torch.bool):
            for shape in ((6, 40), (40, 6), (2, 3, 40), (1, 4096), (1 << 18,), (), (1, 1)):
                for offset in (0, 1):
                    pool.append(tag(f"{dtype} {shape} {offset}", at(offset, *shape, dtype=dtype)))
        pool += [x.t() for x in pool if x.dim() == 2] + [x[..., ::2] for x in pool if x.dim() > 1]
        names = ("sum", "prod", "amax", "max", "argmin", "all", "mean")
        values, held = [], []
        for i in range(700):
            x = chance.choice(pool)
            kwargs = {}
            if chance.random() < 0.8:
                kwargs["dim"] = chance.choice([0, -1, 1, None])
            if chance.random() < 0.5:
                kwargs["keepdim"] = chance.choice([True, False])
            function = getattr(ops, chance.choice(names))
            if chance.random() < 0.1:
                try:
                    held.append((function.prepare(x, **kwargs), x))
                except Exception:
                    pass
            if held and chance.random() < 0.3:
                function, kwargs = chance.choice(held)[0], {}
            if chance.random() < 0.02:
                native.invalidate()
            values.append(outcome(f"r{i}", function, x, **kwargs))
        finish(values, native=served_natively(*names))
        """,
        reductions,
        ops=True,
    )


@pytest.mark.slow
def test_memory(driver: Path, reductions: Path) -> None:
    """Nothing is kept but what is remembered, which is bounded; bundles and tensors are given back."""
    result = run_script(
        driver,
        OPS + MEMORY,
        reductions,
        env={"AOT_NATIVE": "1"},
    )
    assert result.value == {"grown": [], "kept": [], "tables": True, "bundles": True}


MEMORY = """
import resource

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

x, big, out = at(0, 6, 40), at(0, 1 << 16), at(0, 6)
g = at(0, 6, 40).requires_grad_()
held, both = ops.sum.prepare(x, 1), ops.max.prepare(x, 1)

def refused(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception:
        pass

def fails():
    os.environ["FAKECUDA_FAIL"] = "cuLaunchKernel:701"
    refused(ops.sum, x, 1)
    refused(held, x, out=out)
    del os.environ["FAKECUDA_FAIL"]

PATHS = {
    "op": (lambda: ops.sum(x, 1), 30000),
    "op with names": (lambda: ops.sum(x, dim=1, keepdim=False, dtype=torch.float32), 30000),
    "op with out": (lambda: ops.sum(x, 1, out=out), 30000),
    "pair": (lambda: ops.max(x, 1), 20000),
    "split": (lambda: ops.sum(big), 20000),
    "held": (lambda: held(x), 30000),
    "held, out": (lambda: held(x, out=out), 30000),
    "held pair": (lambda: both(x), 20000),
    "by __call__": (lambda: ops.sum.__call__(x, dim=1), 20000),
    "python": (lambda: ops.sum(input=x), 1500),
    "error": (lambda: refused(ops.sum, x, 9), 1500),
    "held error": (lambda: refused(held, big), 1500),
    "out that is no tensor": (lambda: refused(ops.sum, x, 1, out=5), 1500),
    "failed launch": (fails, 1500),
    "invalidated": (lambda: (native.invalidate(), ops.sum(x, 1)), 1500),
}
grown, kept = [], []
for what, (call, count) in PATHS.items():
    for i in range(200):
        call()
    gc.collect()
    before, references = resident(), [sys.getrefcount(item) for item in (x, big, out, torch.float32, None)]
    for i in range(count):
        call()
    gc.collect()
    after = [sys.getrefcount(item) for item in (x, big, out, torch.float32, None)]
    if resident() - before > 400_000:
        grown.append([what, resident() - before])
    if any(abs(a - b) > 50 for a, b in zip(after, references)):
        kept.append([what, references, after])

# Thousands of shapes: the table is bounded, and what it dropped is prepared again.
base = at(0, 1 << 16)
limit = True
for size in range(1, 4500):
    y = ops.sum(base[:size])
    limit = limit and y.shape == () and ops.sum.remembering.remembered() <= 4096
seen = base[:17]
y = ops.sum(seen, 0)
tables = limit and ops.sum.remembering.remembered() > 0

dropped = weakref.ref(seen)
del seen
before = sys.getrefcount(base)
refs = []
for i in range(50):
    with aot.open(PATH) as bundle:
        kernel = bundle.kernel("reduce_rows")
        aot.use(bundle)
        ops.sum(x, 1), ops.sum(x, 1)
        refs.append(weakref.ref(kernel if hasattr(kernel, "__weakref__") else bundle))
    aot.use(BUNDLE)
    ops.sum(x, 1)
del kernel, bundle
for name in ("sum", "max"):
    getattr(ops, name)(x, 1)
gc.collect()
answer({"grown": grown, "kept": kept, "tables": tables,
        "bundles": dropped() is None and sum(ref() is not None for ref in refs) <= 1})
"""
