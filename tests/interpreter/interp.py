"""Launches the reduction kernels on CPU tensors as a host does.

Every launch is watched: outputs, workspace and counters have guard elements past their end,
a launch without splits must leave the workspace alone, and counters must end as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aot.kernel_specs.reductions import argreduce, reduce

F8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex32", "complex64", "complex128")
INTS = (*SIGNED, *UNSIGNED, "bool")
GUARD = 3


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def name_of(tensor: torch.Tensor) -> str:
    """torch's name of the tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")


def accumulator(op: str, dtype: str) -> torch.dtype:
    """The element type of the workspace, of one lane where elements are complex."""
    if op in ("any", "all"):
        return torch.int32
    if dtype in INTS:
        if op in ("sum", "prod"):
            return torch.int64
        return {"uint64": torch.uint64, "uint32": torch.int64, "int64": torch.int64}.get(dtype, torch.int32)
    wide = ("float64", "complex128") + (("float32", "complex64") if op in ("sum", "prod") else ())
    return torch.float64 if dtype in wide else torch.float32


def as_lanes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as the kernel's pointer sees it: real lanes, and fp8 as bytes."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    if name_of(tensor) in F8:
        return tensor.view(torch.uint8)
    return tensor


def guarded(count: int, dtype: torch.dtype) -> torch.Tensor:
    """``count`` elements and the guard, every byte 0x5a: what stays so was not written."""
    size = torch.empty((), dtype=dtype).element_size()
    return torch.full(((count + GUARD) * size,), 0x5A, dtype=torch.uint8).view(dtype)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the elements' bytes, of bools as they are stored."""
    raw = tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
    return raw.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def untouched(tensor: torch.Tensor) -> bool:
    return bool((bytes_of(tensor) == 0x5A).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Outputs and reduced elements of a tile, and how the reduced extent is split and walked."""

    out: int = 4
    red: int = 8
    n_splits: int = 1
    split: int = 64
    vector: int = 1
    unroll: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Which kernel serves a call, and its extents: outputs, reduced elements, strides.

    The outputs of a tile lie in one run of ``n_inner``.
    """

    kind: str
    n_out: int
    n_red: int
    strides: tuple[int, ...]
    n_inner: int = 0

    @classmethod
    def rows(cls, x: torch.Tensor) -> Geometry:
        assert x.dim() == 2
        assert x.stride(1) == 1 or x.size(1) <= 1
        return cls(kind="rows", n_out=x.size(0), n_red=x.size(1), strides=(x.stride(0),))

    @classmethod
    def cols(cls, x: torch.Tensor) -> Geometry:
        """Of a tensor [outer, reduced, inner]."""
        outer, n_red, n_inner = x.shape
        assert x.stride(2) == 1
        strides = (n_inner, x.stride(0), x.stride(1))
        return cls(kind="cols", n_out=outer * n_inner, n_red=n_red, strides=strides, n_inner=n_inner)

    @classmethod
    def strided(cls, x: torch.Tensor, dims: Sequence[int]) -> Geometry:
        groups = ([d for d in range(x.dim()) if d not in dims], list(dims))
        strides: list[int] = []
        for group in groups:
            sizes = [1] * (3 - len(group)) + [x.size(d) for d in group]
            strides += [sizes[1], sizes[2], *[0] * (3 - len(group)), *(x.stride(d) for d in group)]
        n_out, n_red = (math.prod(x.size(d) for d in group) for group in groups)
        return cls(kind="strided", n_out=n_out, n_red=n_red, strides=tuple(strides))

    def grid(self, tiles: Tiles) -> tuple[int, int]:
        run = self.n_inner or self.n_out
        return self.n_out // run * -(-run // tiles.out), tiles.n_splits

    def arguments(self, tiles: Tiles) -> tuple[int, ...]:
        split = self.n_red if tiles.n_splits == 1 else tiles.split
        assert tiles.n_splits * split >= self.n_red
        return (self.n_out, self.n_red, *self.strides, tiles.n_splits, split)

    def blocks(self, tiles: Tiles) -> dict[str, int]:
        if self.kind == "rows":
            return {
                "BLOCK_ROWS": tiles.out,
                "BLOCK_COLS": tiles.red,
                "VECTOR": tiles.vector,
                "UNROLL": tiles.unroll,
            }
        unroll = {"UNROLL": tiles.unroll} if self.kind == "cols" else {}
        return {"BLOCK_OUT": tiles.out, "BLOCK_RED": tiles.red, **unroll}


def check(tiles: Tiles, counters: torch.Tensor, workspaces: Sequence[torch.Tensor]) -> None:
    assert not counters.any(), "a counter was not reset"
    for workspace in workspaces:
        assert untouched(workspace[-GUARD:]), "written past the end of the workspace"
        assert untouched(workspace) == (tiles.n_splits == 1)


def run_reduce(
    op: str,
    x: torch.Tensor,
    geometry: Geometry,
    out: str,
    *,
    divisor: float = 1.0,
    tiles: Tiles = Tiles(),
) -> torch.Tensor:
    """Return the results, a 1-D tensor of the dtype ``out``."""
    dtype = name_of(x)
    lanes = 2 if x.is_complex() and op in ("sum", "prod") else 1
    result = guarded(geometry.n_out, torch_dtype(out))
    workspace = guarded(tiles.n_splits * geometry.n_out * lanes, accumulator(op, dtype))
    counters = torch.zeros(geometry.grid(tiles)[0] + GUARD, dtype=torch.int32)
    kernel = getattr(reduce, f"reduce_{geometry.kind}")
    kernel[geometry.grid(tiles)](
        as_lanes(x), as_lanes(result), workspace, counters, *geometry.arguments(tiles), float(divisor),
        OP=op, DTYPE=dtype, OUT_DTYPE=out, **geometry.blocks(tiles),
    )  # fmt: skip
    check(tiles, counters, [workspace])
    assert untouched(result[-GUARD:]), "written past the end of the output"
    return result[:-GUARD]


def run_arg(
    op: str,
    x: torch.Tensor,
    geometry: Geometry,
    *,
    values: bool = True,
    tiles: Tiles = Tiles(),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (values, indices), 1-D. Without ``values`` none are to be written, and x stands in."""
    dtype = name_of(x)
    value = guarded(geometry.n_out, x.dtype)
    index = guarded(geometry.n_out, torch.int64)
    count = tiles.n_splits * geometry.n_out
    workspaces = [guarded(count, accumulator(op, dtype)), guarded(count, torch.int64)]
    counters = torch.zeros(geometry.grid(tiles)[0] + GUARD, dtype=torch.int32)
    kernel = getattr(argreduce, f"argreduce_{geometry.kind}")
    before = bytes_of(as_lanes(x))
    kernel[geometry.grid(tiles)](
        as_lanes(x), as_lanes(value if values else x), index, *workspaces, counters,
        *geometry.arguments(tiles), int(values), OP=op, DTYPE=dtype, **geometry.blocks(tiles),
    )  # fmt: skip
    check(tiles, counters, workspaces)
    assert torch.equal(bytes_of(as_lanes(x)), before), "the input was written"
    assert untouched(value[-GUARD:])
    assert untouched(index[-GUARD:])
    assert values or untouched(value)
    return value[:-GUARD], index[:-GUARD]
