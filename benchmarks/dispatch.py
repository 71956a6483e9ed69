"""Host time of one call, ours and others': ``python -m benchmarks.dispatch -o FILE``.

All paths of a section launch the same cubin with the same grid and arguments, except Triton's JIT, which
compiles the same source, and eager torch, which has a kernel of its own. Needs a GPU, torch, Triton,
and the bundles of ``make bundle bundle-benchmarks``; cuda.core, tvm-ffi, gcc and g++ where they are to be
measured too. A rival that is not there is listed with the reason, and never silently left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import aot
from aot.loader import native
from benchmarks import hosttime, launches, rivals, shapes
from benchmarks.hosttime import statement
from benchmarks.launches import Launch

# In the order of tables: what is measured for a launch, as Python code over these names.
_ARGUMENTS = {
    "sum_rows": ("x, y", "n_cols", "BLOCK=1024"),
    "rms_norm": ("x, residual, weight, y", "stride, n_cols, eps", "BLOCK=1024, KEEP_SUM=False"),
    "add_products": ("a, b, c, d, y", "*nine_numbers", "**five_constexprs"),
}


class Absent:
    """Collects the rivals that could not be measured, with the reason."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def tried(self, who: str, make: Callable[[], list[hosttime.Path]]) -> list[hosttime.Path]:
        """The paths that ``make`` returns, or none where it fails."""
        try:
            return make()
        except Exception as error:
            self.reasons[who] = f"{type(error).__name__}: {error}".splitlines()[0]
            return []


def kernel_paths(launch: Launch, absent: Absent, ours_only: bool) -> list[hosttime.Path]:
    """Every way to make one kernel's launch."""
    tensors, numbers, constexprs = _ARGUMENTS[launch.kernel.name]
    names = dict(zip(tensors.split(", "), launch.tensors, strict=True))
    if numbers.startswith("*"):
        names |= {"nine_numbers": launch.numbers, "five_constexprs": launch.constexprs}
    else:
        names |= dict(zip(numbers.split(", "), launch.numbers, strict=True))
    names |= {"kernel": launch.kernel, "grid": launch.grid}
    names["prepared"] = launch.kernel.prepare(launch.grid, *launch.args, **launch.constexprs)
    names["jit"] = launch.jit
    call = f"[grid]({tensors}, {numbers}, {constexprs})"
    ours = [
        statement("aot", f"kernel{call}", names),
        statement("held", f"prepared({tensors})", names),
    ]
    if ours_only:
        return ours
    bare = absent.tried(f"bare, {launch.kernel.name}", lambda: _bare(launch))
    _, function = rivals.load_function(launch)

    def jit() -> list[hosttime.Path]:
        return [statement("jit", f"jit{call}", names)]

    def core() -> list[hosttime.Path]:
        more = rivals.cuda_core(launch)
        pointers = ", ".join(f"{name}.data_ptr()" for name in tensors.split(", "))
        return [statement("core", f"launch(stream, config, kernel, {pointers}, *numbers)", names | more)]

    def tvm() -> list[hosttime.Path]:
        more = {"tvm_function": rivals.tvm_ffi(launch, function)}
        return [statement("tvm", f"tvm_function({tensors}, {numbers})", names | more)]

    rival = [
        path
        for who, make in (("jit", jit), ("core", core), ("tvm", tvm))
        for path in absent.tried(f"{who}, {launch.kernel.name}", lambda make=make: _right(launch, make()))
    ]
    return [*rival, *ours, *bare]


def _right(launch: Launch, paths: list[hosttime.Path]) -> list[hosttime.Path]:
    """Make each path write the result once more, and raise where it does not."""
    result = launch.tensors[-1] if launch.kernel.name != "reduce_rows" else launch.tensors[1]
    for path in paths:
        result.zero_()
        path.batch(1)
        if not launch.right():
            raise RuntimeError("the result is wrong")
    return paths


def _bare(launch: Launch) -> list[hosttime.Path]:
    kernel, function = rivals.load_function(launch)
    handles = (("bare", "a CUfunction", function), ("bare-kernel", "a CUkernel", kernel))
    paths = [
        hosttime.Path(key=key, shown=f"cuLaunchKernel in C, {what}", batch=rivals.bare_loop(launch, handle))
        for key, what, handle in handles
    ]
    return _right(launch, paths)


def op_paths(launch: Launch, absent: Absent, ours_only: bool) -> list[hosttime.Path]:
    """A sum over the last dimension, and the launch below it."""
    x = launch.tensors[0]
    names: dict[str, Any] = {"torch": torch, "aot": aot, "x": x, "y": torch.empty(len(x), device=x.device)}
    names["prepared"] = aot.ops.sum.prepare(x, dim=-1)
    names |= {
        "kernel": launch.kernel,
        "grid": launch.grid,
        "args": launch.args,
        "constexprs": launch.constexprs,
    }
    names |= {"jit": launch.jit, "all_constexprs": launch.jit_constexprs | launch.options}
    ours = [
        statement("op", "aot.ops.sum(x, -1)", names),
        statement("op-out", "aot.ops.sum(x, -1, out=y)", names),
        statement("held", "prepared(x)", names),
        statement("held-out", "prepared(x, out=y)", names),
        statement("aot", "kernel[grid](*args, **constexprs)", names),
    ]
    expected = x.double().sum(-1).float()
    for result in (aot.ops.sum(x, -1), names["prepared"](x), names["prepared"](x, out=names["y"])):
        torch.testing.assert_close(result, expected)
    if ours_only:
        return ours
    eager = [
        statement("eager", "torch.sum(x, -1)", names),
        statement("eager-out", "torch.sum(x, -1, out=y)", names),
    ]
    jit = absent.tried(
        "jit, reduce_rows",
        lambda: _right(launch, [statement("jit", "jit[grid](*args, **all_constexprs)", names)]),
    )
    return [*eager, *jit, *ours, *absent.tried("bare, reduce_rows", lambda: _bare(launch))]


def sections(absent: Absent, ours_only: bool, batches: int) -> dict[str, Any]:
    """Measure everything."""
    from aot.kernel_specs.reductions.reduce import reduce_rows as jit_reduce_rows
    from benchmarks.kernels import launch as sources

    reductions = aot.use(os.environ.get("AOT_BUNDLE_PATH", "dist/reductions"))
    kernels = aot.open(os.environ.get("AOT_BENCHMARKS_BUNDLE", "dist/benchmark-kernels"))
    op = launches.reduce_rows(reductions, jit_reduce_rows)
    two = launches.sum_rows(kernels, sources.sum_rows)
    nine = launches.rms_norm(kernels, sources.rms_norm)
    nineteen = launches.add_products(kernels, sources.add_products)
    measured = {"sum": hosttime.measure(op_paths(op, absent, ours_only), batches)}
    for launch in (two, nine, nineteen):
        paths = kernel_paths(launch, absent, ours_only)
        measured[launch.kernel.name] = hosttime.measure(paths, batches)
        if not launch.right():
            raise RuntimeError(f"{launch.kernel.name}: the result is wrong after the measurement")
    return {
        "sections": measured,
        "first_calls": shapes.first_calls(
            nineteen, eager=not ours_only, jit=not ours_only and "jit, add_products" not in absent.reasons
        ),
        "churn": shapes.churn(ours_only),
    }


def versions() -> dict[str, str]:
    """The versions of everything that was measured."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "aot": aot.__version__}
    for name in ("triton", "cuda-bindings", "cuda-core", "apache-tvm-ffi"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def in_pure_python(batches: int) -> dict[str, Any]:
    """The same measurement of our paths alone, in a process without the native launcher."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "python.json"
        command = [sys.executable, "-m", "benchmarks.dispatch", "--ours", "-o", str(file)]
        command += ["--batches", str(batches)]
        subprocess.run(command, check=True, env=os.environ | {"AOT_NATIVE": "0"}, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dispatch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=hosttime.BATCHES)
    parser.add_argument("--ours", action="store_true", help="only our paths, in this process")
    options = parser.parse_args()
    absent = Absent()
    result: dict[str, Any] = {
        "what": f"the median of {options.batches} batches of {hosttime.CALLS} calls",
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "launcher": native.reason(),
        **sections(absent, options.ours, options.batches),
        "absent": absent.reasons,
    }
    if not options.ours:
        result["pure_python"] = in_pure_python(options.batches)
    options.output.write_text(json.dumps(_rounded(result), indent=1) + "\n", encoding="utf-8")
    for name, rows in result["sections"].items():
        print(f"\n{name}")
        for row in rows:
            print(f"{row['us']:9.2f}  {row['path']}")
    for who, reason in absent.reasons.items():
        print(f"absent: {who}: {reason}")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
