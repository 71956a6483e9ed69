"""The launches that are measured: three kernels of ``benchmarks/kernels`` and one of the reductions.

Each :class:`Launch` is one call with everything a rival needs to make the very same one: the
tensors, the numbers, the grid, and the cubin that our loader chose for it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import aot
from aot.manifest import ConstexprArg, Entry, PointerArg

ROWS, COLS = 64, 1000
_C_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float, "fp64": ctypes.c_double}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """``kernel[grid](*tensors, *numbers, **constexprs)``. ``right()`` says whether the last one was right;
    ``options`` are what the JIT needs beside them to compile the same code."""

    kernel: aot.Kernel
    jit: Any
    grid: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    numbers: tuple[int | float, ...]
    constexprs: dict[str, Any]
    options: dict[str, Any]
    right: Callable[[], bool]
    entry: Entry
    cubin: bytes

    @property
    def args(self) -> tuple[Any, ...]:
        """What goes by position."""
        return (*self.tensors, *self.numbers)

    @property
    def jit_constexprs(self) -> dict[str, Any]:
        """Every constexpr by name, those that our loader chooses too."""
        return {arg.name: arg.value for arg in self.entry.variant.args if isinstance(arg, ConstexprArg)}

    @property
    def block(self) -> int:
        """Threads of a program."""
        return self.entry.variant.options.num_warps * 32

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The grid's three sizes."""
        x, y, z = (*self.grid, 1, 1)[:3]
        return (x, y, z)

    def parameters(self) -> list[Any]:
        """The kernel's parameters as C values, the compiler's hidden pointers last."""
        values = dict(zip((arg.name for arg in self.entry.variant.args), self.args, strict=False))
        made: list[Any] = []
        for arg in self.entry.variant.launch_args:
            value = values[arg.name]
            if isinstance(arg, PointerArg):
                made.append(ctypes.c_void_p(value.data_ptr()))
            else:
                made.append(_C_TYPES[arg.type](value))
        return made + [ctypes.c_void_p(0)] * self.entry.binary.hidden


def make_launch(
    bundle: aot.Bundle,
    name: str,
    jit: Any,
    grid: tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]],
    tensors: tuple[torch.Tensor, ...],
    numbers: tuple[int | float, ...],
    constexprs: dict[str, Any],
    expected: torch.Tensor,
    result: torch.Tensor,
    **options: Any,
) -> Launch:
    """Launch once, check the result, and keep what was chosen."""
    kernel = bundle.kernel(name)
    entry = kernel[grid](*tensors, *numbers, **constexprs)  # type: ignore[index]
    if entry is None:
        raise RuntimeError(f"{kernel.name}: nothing was launched")

    def right() -> bool:
        torch.cuda.synchronize()
        return bool(torch.allclose(result, expected, rtol=1e-5, atol=1e-4))

    blocks = {arg.name: arg.value for arg in entry.variant.args if isinstance(arg, ConstexprArg)}
    launch = Launch(
        kernel=kernel,
        jit=jit,
        grid=grid(blocks) if callable(grid) else grid,
        tensors=tensors,
        numbers=numbers,
        constexprs=constexprs,
        options={"num_warps": entry.variant.options.num_warps, **options},
        right=right,
        entry=entry,
        cubin=bundle.reader.cubin(entry.variant.target, entry.binary.cubin),
    )
    if not launch.right():
        raise RuntimeError(f"{kernel.name}: the result is wrong")
    return launch


def sum_rows(bundle: aot.Bundle, jit: Any) -> Launch:
    """Two tensors: the sum of each row."""
    x = torch.randn(ROWS, COLS, device="cuda")
    out = torch.empty(ROWS, device="cuda")
    expected = x.double().sum(-1).float()
    return make_launch(bundle, "sum_rows", jit, (ROWS,), (x, out), (COLS,), {"BLOCK": 1024}, expected, out)


def rms_norm(bundle: aot.Bundle, jit: Any) -> Launch:
    """Nine arguments: four tensors, three numbers, two constexprs."""
    x, residual = torch.randn(2, ROWS, COLS, device="cuda")
    weight = torch.randn(COLS, device="cuda")
    out = torch.empty_like(x)
    total = (x + residual).double()
    expected = (total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight).float()
    tensors, numbers = (x, residual, weight, out), (COLS, COLS, 1e-6)
    constexprs = {"BLOCK": 1024, "KEEP_SUM": False}
    return make_launch(bundle, "rms_norm", jit, (ROWS,), tensors, numbers, constexprs, expected, out)


def add_products(bundle: aot.Bundle, jit: Any) -> Launch:
    """Nineteen arguments: five tensors, nine numbers, five constexprs."""
    a, b, c, d = torch.randn(4, ROWS, COLS, device="cuda")
    out = torch.zeros(ROWS, COLS, device="cuda")
    first_row, first_col, n_rows, n_cols = 3, 5, ROWS - 3, COLS - 5
    expected = torch.zeros_like(out)
    expected[first_row:, first_col:] = (a * b + c * d)[first_row:, first_col:]
    numbers = (first_row, first_col, n_rows, n_cols, COLS, COLS, COLS, COLS, COLS)
    constexprs = {"BLOCK_ROWS": 16, "BLOCK_COLS": 128, "NEGATE": False, "RELU": False, "ACCUMULATE": False}
    grid = (math.ceil(n_rows / 16), math.ceil(n_cols / 128))
    tensors = (a, b, c, d, out)
    return make_launch(bundle, "add_products", jit, grid, tensors, numbers, constexprs, expected, out)


def reduce_rows(bundle: aot.Bundle, jit: Any) -> Launch:
    """The launch that ``aot.ops.sum(x, -1)`` makes: 17 arguments of which the kernel is passed 10."""
    x = torch.randn(ROWS, COLS, device="cuda")
    out = torch.empty(ROWS, device="cuda")
    partial = torch.empty(16, dtype=torch.float64, device="cuda")
    counter = torch.zeros(16, dtype=torch.int32, device="cuda")

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        return (math.ceil(ROWS / meta["BLOCK_ROWS"]), 1)

    numbers = (ROWS, COLS, COLS, 1, 1024, 1.0)
    constexprs = {"OP": "sum", "DTYPE": "float32", "OUT_DTYPE": "float32"}
    expected = x.double().sum(-1).float()
    tensors = (x, out, partial, counter)
    return make_launch(
        bundle, "reduce_rows", jit, grid, tensors, numbers, constexprs, expected, out, enable_fp_fusion=False
    )
