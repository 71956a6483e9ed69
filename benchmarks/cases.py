"""The reductions that are measured: what models and data pipelines run, and what the kernels find hard."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``op`` over ``dim`` (None: all) of a contiguous tensor."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    dim: int | None

    @property
    def name(self) -> str:
        return f"{self.op} {self.dtype} {list(self.shape)} dim={self.dim}"

    @property
    def bytes(self) -> int:
        """Bytes of the input."""
        return math.prod(self.shape) * torch.empty((), dtype=getattr(torch, self.dtype)).element_size()


_TABLE: tuple[tuple[str, str, tuple[int, ...], int | None], ...] = (
    ("sum", "bfloat16", (4096, 128256), -1),
    ("sum", "bfloat16", (8192, 8192), -1),
    ("sum", "float32", (8192, 8192), -1),
    ("sum", "float32", (512, 4096), -1),
    ("sum", "bfloat16", (65536, 2880), 0),
    ("sum", "float32", (8192, 8192), 0),
    ("sum", "float64", (134217728,), None),
    ("sum", "float32", (268435456,), None),
    ("sum", "bfloat16", (256, 256), None),
    ("sum", "float32", (1024,), None),
    ("sum", "int8", (8192, 8192), -1),
    ("sum", "bool", (8192, 8192), -1),
    ("sum", "bool", (8192, 8192), None),
    ("sum", "int32", (8192, 8192), -1),
    ("sum", "int64", (8192, 8192), -1),
    ("sum", "uint8", (8192, 8192), 0),
    ("sum", "complex64", (4096, 4096), 1),
    ("sum", "float32", (7840000, 4), -1),
    ("sum", "float32", (4, 1048576), 0),
    ("sum", "float16", (32, 128, 4096), 1),
    ("mean", "bfloat16", (256, 256), None),
    ("mean", "bfloat16", (8192, 8192), -1),
    ("prod", "float32", (8192, 8192), -1),
    ("prod", "complex64", (4096, 4096), 1),
    ("amax", "bfloat16", (8192, 8192), -1),
    ("amax", "int8", (8192, 8192), -1),
    ("amax", "float32", (100, 1024, 128), 1),
    ("amin", "float64", (8192, 4096), -1),
    ("max", "float32", (100, 1024, 128), 1),
    ("max", "bfloat16", (256, 151936), -1),
    ("argmax", "bfloat16", (256, 151936), -1),
    ("argmax", "bfloat16", (1, 151936), -1),
    ("argmax", "float32", (8192, 8192), 0),
    ("argmax", "int32", (8192, 8192), -1),
    ("argmin", "float32", (1440000,), None),
    ("any", "bool", (8192, 8192), 0),
    ("any", "bool", (8192, 8192), -1),
    ("any", "bool", (1048576,), None),
    ("all", "float32", (8192, 8192), -1),
    ("logsumexp", "bfloat16", (4096, 128256), -1),
    ("softmax", "bfloat16", (4096, 128256), -1),
    ("softmax", "bfloat16", (8192, 8192), -1),
    ("var", "float32", (8192, 8192), -1),
    ("norm", "float32", (320, 40960), -1),
    ("sum", "float8_e4m3fn", (8192, 8192), -1),
)
CASES = tuple(Case(op=op, dtype=dtype, shape=shape, dim=dim) for op, dtype, shape, dim in _TABLE)


def random_input(case: Case, device: str) -> torch.Tensor:
    """Random data: no zeros but in bools, so that nothing is spared."""
    dtype = getattr(torch, case.dtype)
    generator = torch.Generator(device).manual_seed(1)
    if dtype == torch.bool:
        return torch.randint(0, 2, case.shape, dtype=torch.uint8, device=device, generator=generator).bool()
    if not (dtype.is_floating_point or dtype.is_complex):
        info = torch.iinfo(dtype)
        bounds = (max(info.min, -(2**31)), min(info.max, 2**31 - 1))
        return torch.randint(*bounds, case.shape, dtype=dtype, device=device, generator=generator)
    drawn = torch.complex64 if dtype.is_complex else torch.float32
    return torch.randn(case.shape, dtype=drawn, device=device, generator=generator).to(dtype)
