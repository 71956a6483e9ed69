"""The native launcher as a binary: stable ABI, no warnings, and clean under the sanitizers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from bundlemaker import make_bundle
from cputensors import OPS
from fakecuda import run_script
from loaderscripts import simple

import aot.loader

CSRC = Path(aot.loader.__file__).parent / "csrc"

if shutil.which("gcc") is None:
    pytest.skip("needs gcc", allow_module_level=True)


def compile_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_launcher", CSRC / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_warning_and_only_the_stable_abi(tmp_path: Path) -> None:
    """The limited API declares nothing else, so an undeclared function is one that is not stable."""
    output = tmp_path / "_native.abi3.so"
    strict = ("-Werror", "-Wshadow", "-Wundef", "-Wstrict-prototypes")
    assert compile_module().compile_launcher(output, *strict) is None
    listed = subprocess.run(["nm", "-D", str(output)], capture_output=True, text=True, check=True).stdout
    defined = re.findall(r" [TDBR] (\w+)$", listed, re.M)
    assert defined == ["PyInit__native"]
    # The limited API's own names for what PY_SSIZE_T_CLEAN asks of it.
    private = {name for name in re.findall(r" U (_Py\w+)", listed) if not name.endswith("_SizeT")}
    assert private <= {"_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct", "_Py_Dealloc"}


# One round of everything that native code does: served calls, refusals, failures, growth, an end.
ROUND = """
x, big, out = at(0, 6, 40), at(0, 1 << 18), at(0, 6)
held, both = ops.sum.prepare(x, 1), ops.max.prepare(x, 1)
kernel = BUNDLE.kernel("reduce_rows")
def refused(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception:
        pass
for i in range(3):
    ops.sum(x, 1), ops.sum(x, 1, out=out), ops.max(x, 1), ops.sum(big), held(x), held(x, out=out), both(x)
    ops.sum(x, (0, 1)), ops.sum(x, [0]), ops.sum(x.t(), 1), ops.sum(at(0, *[1] * 60))
    refused(ops.sum, x, 2**70), refused(ops.sum, x, 9), refused(held, big), refused(held)
    refused(ops.sum), refused(ops.sum, None), refused(held, x, out=None), refused(held, x, **{"o" * 9: 1})
    inner = ops.sum.remembering
    refused(inner, x, *range(200)), refused(inner, x, **{f"k{i}": i for i in range(200)})
    refused(inner, x, list(range(1000))), refused(inner, x, "s" * 100_000)
    refused(inner.__call__, x, *range(200), out=out), refused(inner.__call__, x, dim=1)
    os.environ["FAKECUDA_FAIL"] = "cuLaunchKernel:701"
    refused(ops.sum, x, 1), refused(held, x), refused(ops.sum, big)
    del os.environ["FAKECUDA_FAIL"]
    native.invalidate()
    gc.collect()
for grid in ((1,), [1, 2], lambda meta: (1, 1), lambda meta: (native.invalidate(), 1 / 0)):
    for i in range(3):
        refused(kernel[grid], x, out, big, at(0, 64, dtype=torch.int32), 6, 40, 40, 1, 64, 1.0, OP="sum",
                DTYPE="float32", OUT_DTYPE="float32")
for size in range(1, 4200):
    ops.sum(big[:size])
def work():
    for i in range(50):
        ops.sum(x, 1), ops.sum(big), kernel
        native.invalidate()
threads = [threading.Thread(target=work) for t in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
for wrong in ((), (1,), (x,) * 3):
    refused(NATIVE.Plan, *wrong), refused(NATIVE.Operation, *wrong), refused(NATIVE.Calls, *wrong)
    refused(NATIVE.configure, *wrong), refused(NATIVE.launch, *wrong)
refused(type(kernel[(1,)]))
BUNDLE.close()
gc.collect()
answer(NATIVE.__file__)
"""


def library_of_gcc(name: str) -> Path:
    done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="preloads the sanitizer's library")
def test_sanitizers(driver: Path, reductions: Path, tmp_path: Path) -> None:
    """Every path under the address and undefined-behaviour sanitizers."""
    library = tmp_path / "_native.abi3.so"
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
    fault = compile_module().compile_launcher(library, *flags)
    if fault is not None and "sanitize" in fault:
        pytest.skip("gcc has no sanitizers here")
    assert fault is None
    # The sanitizer finds the throw of C++ when it starts, so that has to be there by then.
    preload = [library_of_gcc(name) for name in ("libasan.so", "libstdc++.so.6")]
    if not all(map(Path.is_file, preload)):
        pytest.skip("gcc has no sanitizers here")
    first = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("aot.loader._native", {str(library)!r})
module = importlib.util.module_from_spec(spec)
sys.modules["aot.loader._native"] = module
spec.loader.exec_module(module)
import aot.loader
aot.loader._native = module
"""
    result = run_script(
        driver,
        first + OPS + ROUND,
        reductions,
        env={
            "AOT_NATIVE": "1",
            "LD_PRELOAD": " ".join(map(str, preload)),
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0",
            "PATH": os.environ["PATH"],
        },
    )
    assert result.value == str(library)


def test_a_torch_that_is_not_as_expected(driver: Path, tmp_path: Path) -> None:
    """Its calls take the way through Python, and one line of the log says so."""
    result = run_script(
        driver,
        """
        import logging
        logging.basicConfig(format="%(message)s")
        import torch
        del torch._C._is_tracing
        from aot.loader import native
        import aot.ops
        kernel = aot.open(PATH).kernel("k")
        entries = [kernel[(1,)](Array(), 16) is not None for i in range(2)]
        served_by = type(aot.ops.sum.remembering).__name__
        answer([native.available(), native.with_torch() is None, entries, served_by])
        """,
        make_bundle(tmp_path / "bundle", simple()),
        env={"AOT_NATIVE": "1"},
    )
    assert result.value == [True, True, [True, True], "PythonOperation"]
    [line] = [line for line in result.stderr.splitlines() if "natively" in line]
    assert "cannot be asked natively (module 'torch._C' has no attribute '_is_tracing')" in line


# Without torch and without aot: the module alone, and the driver through it.
ALONE = """
import gc, importlib.util, json, sys, weakref
spec = importlib.util.spec_from_file_location("aot.loader._native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
found = [native.open_driver(), native.driver_version(), native.device_count(), native.current_context()[0]]
found.append(native.device_name(0)[1].decode())
context = native.primary_context(0)[1]
found += [native.push_context(context), native.context_device(), native.pointer_device(1 << 40)]
found += [native.is_capturing(0), native.error_name(201), native.launch(0, (1, 1, 1), 1, 0, 0, 0, 1)]
found.append(native.pop_context())

def python(args, kwargs):
    return [len(args), len(kwargs)], None
operation = native.Operation(python, True)
many = {f"k{i}": i for i in range(150)}
found += [operation(1, x=2), operation(*range(200))]
found += [operation.__call__(*range(200), **many), operation(**many)]
operation.name = "named"
calls = native.Calls(("x", "n"), lambda bound, args, kwargs: ([bound, args, kwargs], None))
found += [operation.name, operation.hits]
found += [calls.bind((1,), None)(1, n=2), calls.remembered(), native.Tally().hits]

class Node:
    pass
for i in range(3):
    node = Node()
    node.operation = native.Operation(lambda args, kwargs, node=node: (1, None), False)
    node.operation.back = node
    node.calls = native.Calls(("x",), lambda *args, node=node: (1, None))
    node.bound = node.calls.bind(node, node)
    gone = weakref.ref(node)
    del node
    gc.collect()
    found.append(gone() is None)
for wrong in (lambda: type(calls.bind(1, None))(), lambda: native.Operation(), lambda: native.Plan(),
              lambda: native.Calls(names=1, python=2), lambda: calls.bind(1), lambda: native.launch(1)):
    try:
        wrong()
    except TypeError:
        found.append("TypeError")
print(json.dumps(found))
"""


@pytest.mark.parametrize("python", [sys.executable, "python3.10", "python3.11", "python3.12", "python3.13"])
def test_one_binary_for_every_python(driver: Path, tmp_path: Path, python: str) -> None:
    """The same file, in each CPython that is here: import, driver, calls, cycles that are collected."""
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"needs {python}")
    output = tmp_path / "_native.abi3.so"
    assert compile_module().compile_launcher(output) is None
    env = {"LD_LIBRARY_PATH": str(driver), "PATH": os.environ["PATH"], "FAKECUDA_DEVICES": "9.0:Fake"}
    command = [python, "-X", "dev", "-c", ALONE, str(output)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout) == [
        *(0, [0, 13000], [0, 1], 0, "Fake", 0, [0, 0], [0, 0], [0, 0]),
        *("CUDA_ERROR_INVALID_CONTEXT", 400, 0),
        *([1, 1], [200, 0], [200, 150], [0, 150], "named", 0),
        *([[[1], None], [1], {"n": 2}], 0, 0),
        *[True] * 3,
        *["TypeError"] * 6,
    ]
