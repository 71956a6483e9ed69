"""The kernels' contracts in numpy: the whole host side of ``aot.ops`` on CPU tensors.

Each function does what the docstring of the Triton kernel of the same name promises, from
the same arguments: it reads the tensor's memory through the sizes and strides that it is
given, keeps partial results where there are several splits, and leaves its counters zero.
Wrong sizes, strides, splits, dtypes or grids give wrong answers here as they do on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from aot.loader.ops.splits import SplitPolicy

BLOCKS = {"BLOCK_ROWS": 4, "BLOCK_COLS": 8, "BLOCK_OUT": 4, "BLOCK_RED": 8}


@dataclass
class ReferenceBackend:
    """Serves CPU tensors. ``launches`` records each launch: kernel, grid, constexprs."""

    device_type: str = "cpu"
    split: SplitPolicy = field(default_factory=lambda: SplitPolicy(processors=4, min_split=64, columns=8))
    stream_key: Hashable | None = 0
    launches: list[tuple[str, tuple[int, ...], dict[str, str]]] = field(default_factory=list)

    def policy(self, device: torch.device) -> SplitPolicy:
        return self.split

    def stream(self, device: torch.device) -> Hashable | None:
        return self.stream_key

    def kernel(self, name: str) -> _Kernel:
        return _Kernel(self, name)


@dataclass
class _Kernel:
    backend: ReferenceBackend
    name: str

    def __getitem__(self, grid: Callable[[Mapping[str, Any]], tuple[int, ...]]) -> Callable[..., None]:
        def call(*args: Any, **constexprs: str) -> None:
            sizes = grid({**BLOCKS, **constexprs})
            assert all(size > 0 for size in sizes)
            self.backend.launches.append((self.name, sizes, constexprs))
            with np.errstate(all="ignore"):
                KERNELS[self.name](sizes, *args, **constexprs)

        return call


def view(x: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return x.as_strided(sizes, strides, x.storage_offset())


def rows_view(x: torch.Tensor, n_rows: int, n_cols: int, row_stride: int) -> torch.Tensor:
    return view(x, (n_rows, n_cols), (row_stride, 1))


def cols_view(
    x: torch.Tensor, n_out: int, n_red: int, n_inner: int, outer_stride: int, red_stride: int
) -> torch.Tensor:
    assert n_inner % 16 == outer_stride % 16 == red_stride % 16 == x.data_ptr() % 16 == 0
    sizes, strides = (n_out // n_inner, n_inner, n_red), (outer_stride, 1, red_stride)
    return view(x, sizes, strides).reshape(n_out, n_red)


def strided_view(x: torch.Tensor, n_out: int, n_red: int, *scalars: int) -> torch.Tensor:
    k1, k2, ks0, ks1, ks2, r1, r2, rs0, rs1, rs2 = scalars
    k0, r0 = n_out // (k1 * k2), n_red // (r1 * r2)
    assert (k0 * k1 * k2, r0 * r1 * r2) == (n_out, n_red)
    return view(x, (k0, k1, k2, r0, r1, r2), (ks0, ks1, ks2, rs0, rs1, rs2)).reshape(n_out, n_red)


def numbers(tensor: torch.Tensor, acc: str) -> np.ndarray:
    """The elements as numpy holds them, converted to the accumulator's dtype."""
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return tensor.numpy().astype(acc)
    return tensor.to(getattr(torch, acc)).numpy()


REDUCE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum": lambda a: np.add.reduce(a, axis=1, dtype=a.dtype),
    "prod": lambda a: np.multiply.reduce(a, axis=1, dtype=a.dtype),
    "amax": lambda a: a.max(axis=1),
    "amin": lambda a: a.min(axis=1),
    "any": lambda a: a.any(axis=1).astype(a.dtype),
    "all": lambda a: a.all(axis=1).astype(a.dtype),
}

ACCUMULATORS = {
    "sum": dict.fromkeys(("float32", "float64"), "float64")
    | dict.fromkeys(("complex64", "complex128"), "complex128"),
    "order": {"float64": "float64", "uint32": "int64", "int64": "int64", "uint64": "uint64"},
}


def accumulator(code: str, dtype: str) -> str:
    """The dtype of partial results, as the kernels' contract has it."""
    if code in ("any", "all"):
        return "int32"
    kind = "sum" if code in ("sum", "prod") else "order"
    if dtype in ACCUMULATORS[kind]:
        return ACCUMULATORS[kind][dtype]
    if dtype.startswith(("float", "bfloat")):
        return "float32"
    if dtype.startswith("complex"):
        return "complex64"
    return "int64" if kind == "sum" else "int32"


def check_splits(
    grid: tuple[int, ...], block: str, counter: torch.Tensor, partials: tuple[torch.Tensor, ...],
    acc: str, n_out: int, n_red: int, n_splits: int, size: int, n_inner: int = 0,
) -> None:  # fmt: skip
    run = n_inner or n_out
    assert grid == (n_out // run * -(-run // BLOCKS[block]), n_splits)
    assert size % 64 == 0
    assert n_splits * size >= n_red
    assert str(partials[0].dtype) == f"torch.{acc}"
    assert counter.dtype == torch.int32
    if n_splits > 1:
        assert (n_splits - 1) * size < n_red
        assert all(p.shape == (n_splits, n_out) and p.is_contiguous() for p in partials)
        assert counter.numel() >= n_out
        assert not counter.any()


def reduce_to(
    source: torch.Tensor, out: torch.Tensor, partial: torch.Tensor, n_splits: int, size: int,
    divisor: float, OP: str, DTYPE: str, OUT_DTYPE: str,
) -> None:  # fmt: skip
    assert (str(source.dtype), str(out.dtype)) == (f"torch.{DTYPE}", f"torch.{OUT_DTYPE}")
    assert out.is_contiguous()
    acc = accumulator(OP, DTYPE)
    data = numbers(source != 0 if OP in ("any", "all") else source, acc)
    if n_splits > 1:
        held = partial.numpy()
        for i in range(n_splits):
            held[i] = REDUCE[OP](data[:, i * size : (i + 1) * size])
        data = held.T
    if data.shape[1] == 0:
        identity = {"sum": 0, "any": 0, "prod": 1, "all": 1}[OP]
        result = np.full(data.shape[0], identity, dtype=data.dtype)
    else:
        result = REDUCE[OP](data)
    if divisor != 1.0:
        result = result / np.asarray(divisor, dtype=result.dtype)
    if OUT_DTYPE in ("uint16", "uint32", "uint64"):
        out.copy_(torch.from_numpy(result.astype(OUT_DTYPE)).view(out.shape))
    else:
        out.copy_(torch.from_numpy(result).to(out.dtype).view(out.shape))


def reduce_rows(grid, x, out, partial, counter, n_rows, n_cols, row_stride, n_splits, size, divisor, **c):
    acc = accumulator(c["OP"], c["DTYPE"])
    check_splits(grid, "BLOCK_ROWS", counter, (partial,), acc, n_rows, n_cols, n_splits, size)
    reduce_to(rows_view(x, n_rows, n_cols, row_stride), out, partial, n_splits, size, divisor, **c)


def reduce_strided(grid, x, out, partial, counter, n_out, n_red, *rest, **c):
    *scalars, n_splits, size, divisor = rest
    acc = accumulator(c["OP"], c["DTYPE"])
    check_splits(grid, "BLOCK_OUT", counter, (partial,), acc, n_out, n_red, n_splits, size)
    reduce_to(strided_view(x, n_out, n_red, *scalars), out, partial, n_splits, size, divisor, **c)


def reduce_cols(grid, x, out, partial, counter, n_out, n_red, *rest, **c):
    *scalars, n_splits, size, divisor = rest
    acc = accumulator(c["OP"], c["DTYPE"])
    check_splits(grid, "BLOCK_OUT", counter, (partial,), acc, n_out, n_red, n_splits, size, scalars[0])
    reduce_to(cols_view(x, n_out, n_red, *scalars), out, partial, n_splits, size, divisor, **c)


def argreduce_to(
    source: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, partials: tuple[torch.Tensor, ...],
    n_splits: int, size: int, write_values: int, OP: str, DTYPE: str,
) -> None:  # fmt: skip
    assert str(source.dtype) == str(values.dtype) == f"torch.{DTYPE}"
    assert indices.dtype == torch.int64
    data = numbers(source, accumulator(OP, DTYPE))
    find = np.argmax if OP == "argmax" else np.argmin
    rows = np.arange(data.shape[0])
    if n_splits > 1:
        best, where = (p.numpy() for p in partials)
        for i in range(n_splits):
            part = data[:, i * size : (i + 1) * size]
            found = find(part, axis=1)
            best[i], where[i] = part[rows, found], found + i * size
        found = where.T[rows, find(best.T, axis=1)]
    else:
        found = find(data, axis=1)
    indices.copy_(torch.from_numpy(found.astype(np.int64)).view(indices.shape))
    if write_values:
        # By bytes: the CPU gathers neither fp8 nor unsigned integers.
        size = source.element_size()
        picked = source.contiguous().view(torch.uint8).view(*source.shape, size)[rows, found]
        values.copy_(picked.contiguous().view(source.dtype).view(values.shape))


def argreduce_rows(
    grid, x, values, indices, partial_values, partial_indices, counter,
    n_rows, n_cols, row_stride, n_splits, size, write_values, **c,
):  # fmt: skip
    partials = (partial_values, partial_indices)
    acc = accumulator(c["OP"], c["DTYPE"])
    check_splits(grid, "BLOCK_ROWS", counter, partials, acc, n_rows, n_cols, n_splits, size)
    source = rows_view(x, n_rows, n_cols, row_stride)
    argreduce_to(source, values, indices, partials, n_splits, size, write_values, **c)


def argreduce_strided(
    grid, x, values, indices, partial_values, partial_indices, counter, n_out, n_red, *rest, **c
):
    *scalars, n_splits, size, write_values = rest
    partials = (partial_values, partial_indices)
    acc = accumulator(c["OP"], c["DTYPE"])
    check_splits(grid, "BLOCK_OUT", counter, partials, acc, n_out, n_red, n_splits, size)
    source = strided_view(x, n_out, n_red, *scalars)
    argreduce_to(source, values, indices, partials, n_splits, size, write_values, **c)


def argreduce_cols(
    grid, x, values, indices, partial_values, partial_indices, counter, n_out, n_red, *rest, **c
):
    *scalars, n_splits, size, write_values = rest
    partials = (partial_values, partial_indices)
    acc = accumulator(c["OP"], c["DTYPE"])
    check_splits(grid, "BLOCK_OUT", counter, partials, acc, n_out, n_red, n_splits, size, scalars[0])
    source = cols_view(x, n_out, n_red, *scalars)
    argreduce_to(source, values, indices, partials, n_splits, size, write_values, **c)


KERNELS: dict[str, Callable[..., None]] = {
    "reduce_rows": reduce_rows,
    "reduce_cols": reduce_cols,
    "reduce_strided": reduce_strided,
    "argreduce_rows": argreduce_rows,
    "argreduce_cols": argreduce_cols,
    "argreduce_strided": argreduce_strided,
}
