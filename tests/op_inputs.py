"""Inputs for the operations in every layout class, and what the right answer is.

Shared by the tests on the CPU, under Triton's interpreter, and on the GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from aot.dtypes import DTYPES

OPS = ("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all")
LIST_OPS = ("sum", "mean", "amax", "amin", "any", "all")
ORDER_OPS = ("amax", "amin", "max", "min", "argmax", "argmin")
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def serves(op: str, dtype: str) -> bool:
    """Whether ``aot.ops`` computes ``op`` for ``dtype`` without a ``dtype=``."""
    kind = DTYPES[dtype].kind
    if op in ORDER_OPS:
        return kind != "complex"
    return op != "mean" or kind in ("float", "complex")


def make(shape: tuple[int, ...], dtype: str, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """Random elements of any dtype of the table: both signs, some zeros and repeats, and products
    and sums that stay finite."""
    generator = torch.Generator().manual_seed(seed)
    kind, wanted = DTYPES[dtype].kind, getattr(torch, dtype)
    if kind == "bool":
        made = torch.randint(0, 4, shape, generator=generator) > 0
    elif kind == "uint":
        made = torch.randint(0, 200, shape, generator=generator).to(wanted)
    elif kind == "int":
        made = torch.randint(-100, 100, shape, generator=generator).to(wanted)
    elif kind == "complex":
        angle = torch.rand(shape, generator=generator, dtype=torch.float64) * 6.28
        made = torch.polar(_around_one(shape, generator).abs(), angle).to(wanted)
    elif dtype == "float8_e8m0fnu":
        made = torch.randint(-1, 2, shape, generator=generator).double().exp2().to(wanted)
    else:
        made = _around_one(shape, generator).to(wanted)
    return made.to(device)


def _around_one(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Numbers between 1/2 and 2 of either sign, and a few zeros: long products stay in range."""
    size = torch.exp2(torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1)
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return size * sign * (torch.rand(shape, generator=generator) > 0.02)


def layouts(dtype: str, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Small tensors of one dtype, by the name of their layout class.

    Field cases A15, A16, A28 to A33: sizes that fit no block, and every way to lie in memory.
    """
    flat = make((1031,), dtype, device, seed=1)
    square = make((9, 20), dtype, device, seed=2)
    cube = make((3, 5, 33), dtype, device, seed=3)
    return {
        "contiguous": square,
        "transposed": square.T,
        "permuted": cube.permute(2, 0, 1),
        "sliced": make((8, 41), dtype, device, seed=4)[::2, 1:],
        "every second": make((6, 64), dtype, device, seed=5)[:, ::2],
        "row stride": make((4, 2, 8), dtype, device, seed=6).transpose(0, 1),
        "expanded rows": make((17, 1), dtype, device, seed=7).expand(17, 65),
        "expanded scalar": make((1,), dtype, device, seed=8).expand(13, 2),
        "misaligned": flat[1:].view(10, 103),
        "channels last": make((2, 3, 4, 5), dtype, device, seed=9).to(memory_format=torch.channels_last),
        "many dimensions": make((2, 3, 2, 3, 2, 2), dtype, device, seed=10).permute(5, 0, 4, 1, 3, 2)[
            :, :, ::2
        ],
        "long row": make((1, 1025), dtype, device, seed=11),
        "size 1": flat.as_strided((8, 1), (1, 12345)),
        "empty rows": make((0, 4), dtype, device),
        "empty columns": make((4, 0), dtype, device),
        "empty middle": make((2, 0, 3), dtype, device),
        "0-d": make((), dtype, device, seed=12),
    }


def calls(op: str, x: torch.Tensor) -> list[dict[str, Any]]:
    """The ``dim`` and ``keepdim`` to call ``op`` with: all, each dimension, and lists of them."""
    dims: list[Any] = list(range(-1, x.ndim))
    if op in LIST_OPS:
        dims += [[], *([(0, -1)] if x.ndim > 1 else []), *([[2, 1]] if x.ndim > 2 else [])]
    found: list[dict[str, Any]] = [{}]
    found += [{"dim": dim, "keepdim": i % 2 == 1} for i, dim in enumerate(dims)]
    return found


def expected(op: str, x: torch.Tensor, **kwargs: Any) -> Any:
    """torch's answer on the CPU, and what torch raises.

    Sums, means and products of floating and complex numbers are computed in float64 and
    complex128 and rounded once. Where torch has no kernel, another dtype stands in: unsigned
    integers compare as int64 (uint64 shifted into its range), fp8 as float32, bool as uint8.
    """
    x = x.cpu()
    name = str(x.dtype).removeprefix("torch.")
    wide: torch.Tensor | None = None
    if op in ("sum", "mean", "prod") and (x.dtype.is_floating_point or x.dtype.is_complex):
        wide = x.to(torch.complex128 if x.dtype.is_complex else torch.float64)
    elif name.startswith("float8"):
        wide = x.float()
    elif op in ORDER_OPS and x.dtype in UNSIGNED:
        wide = x.view(torch.int64) ^ -(2**63) if x.dtype == torch.uint64 else x.to(torch.int64)
    elif op in ("argmax", "argmin") and x.dtype == torch.bool:
        wide = x.to(torch.uint8)
    if wide is None:
        return getattr(torch, op)(x, **kwargs)
    found = getattr(torch, op)(wide, **kwargs)
    if op in ("any", "all", "argmax", "argmin") or "dtype" in kwargs:
        return found
    if isinstance(found, tuple):
        return _narrow(found[0], x.dtype), found[1]
    return _narrow(found, x.dtype)


def _narrow(found: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.uint64:
        return (found ^ -(2**63)).view(dtype)
    return found.to(dtype)


def check(found: Any, wanted: Any, label: str) -> None:
    """Compare a result with the right one: shape, strides, dtype, and values (NaN equals NaN)."""
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else ((found, wanted),)
    for one, other in pairs:
        assert one.shape == other.shape, label
        assert one.dtype == other.dtype, label
        assert one.is_contiguous(), label
        one = one.cpu()
        if one.dtype in UNSIGNED:
            assert torch.equal(one.view(other.dtype), other), label
        elif one.dtype.is_floating_point and one.element_size() == 1:
            torch.testing.assert_close(
                one.float(), other.float(), rtol=0.25, atol=0, equal_nan=True, msg=label
            )
        elif one.dtype == torch.complex32:
            torch.testing.assert_close(
                one.to(torch.complex64),
                other.to(torch.complex64),
                rtol=2e-3,
                atol=2e-3,
                equal_nan=True,
                msg=label,
            )
        else:
            torch.testing.assert_close(one, other, equal_nan=True, msg=lambda text: f"{label}: {text}")
