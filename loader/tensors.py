"""Tensors as a launch sees them: an address, a dtype, a device.

Any object will do that has ``data_ptr()`` and ``dtype``, as torch's tensors have, or
``__cuda_array_interface__``, as CuPy's and Numba's arrays have. torch is not imported.
"""

from __future__ import annotations

import re

from msgspec import Struct

from aot.dtypes import ALIASES, DTYPES
from aot.errors import LaunchError
from aot.loader.torch_adapter import is_tensor

_TYPESTR = {
    "b1": "bool",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
}


class Pointer(Struct, frozen=True, kw_only=True):
    """Where a tensor's first element lies. ``dtype`` is torch's name; ``device`` the CUDA
    device's index, None where the object does not say; ``torch`` whether it is torch's tensor."""

    address: int
    dtype: str
    device: int | None
    torch: bool


def read_pointer(where: str, value: object) -> Pointer:
    """Read a tensor argument. Raises ``LaunchError`` starting with ``where``."""
    # torch's CPU tensors raise when asked for the interface, so data_ptr comes first.
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return _read_tensor(where, value)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _read_interface(where, value, interface)
    if value is None:
        found = "None"
    elif isinstance(value, int) and not isinstance(value, bool):
        found = "an int, and an address alone says no dtype"
    else:
        found = f"{type(value).__name__}"
    raise LaunchError(
        f"{where}: found {found}, wanted a CUDA tensor (an object with data_ptr() and dtype, "
        "or with __cuda_array_interface__)"
    )


def _read_tensor(where: str, value: object) -> Pointer:
    torch = is_tensor(value)
    device = _device_index(where, getattr(value, "device", None))
    if torch:
        _refuse_lazy_bits(where, value)
    try:
        address = value.data_ptr()  # type: ignore[attr-defined]
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LaunchError(
            f"{where}: found a {type(value).__name__} without an address ({reason}), wanted a CUDA tensor"
        ) from None
    name = str(value.dtype).removeprefix("torch.")  # type: ignore[attr-defined]
    dtype = name if name in DTYPES else ALIASES.get(name, name)
    return Pointer(address=address, dtype=dtype, device=device, torch=torch)


def _refuse_lazy_bits(where: str, value: object) -> None:
    """A conjugated or negated view holds the values of its base; a kernel reads what is stored."""
    if value.is_conj():  # type: ignore[attr-defined]
        raise LaunchError(
            f"{where}: found a tensor with its conj bit set, and a kernel sees the stored values; "
            "wanted x.resolve_conj()"
        )
    if value.is_neg():  # type: ignore[attr-defined]
        raise LaunchError(
            f"{where}: found a tensor with its neg bit set, and a kernel sees the stored values; "
            "wanted x.resolve_neg()"
        )


def _device_index(where: str, device: object) -> int | None:
    if device is None or isinstance(device, int):
        return device
    kind = getattr(device, "type", None)
    if kind is None:
        # CuPy's devices have an id and are always CUDA's.
        index = getattr(device, "id", None)
        return index if isinstance(index, int) else None
    if kind != "cuda":
        raise LaunchError(f"{where}: found a tensor on {device}, wanted a CUDA tensor")
    index = getattr(device, "index", None)
    return index if isinstance(index, int) else None


def _read_interface(where: str, value: object, interface: object) -> Pointer:
    try:
        address = interface["data"][0]  # type: ignore[index]
        typestr = str(interface["typestr"])  # type: ignore[index]
    except (KeyError, TypeError, IndexError):
        raise LaunchError(
            f"{where}: found a __cuda_array_interface__ without data or typestr, wanted both"
        ) from None
    match = re.fullmatch(r"[<|=]?([biufc]\d+)", typestr)
    dtype = _TYPESTR.get(match.group(1)) if match else None
    if dtype is None:
        raise LaunchError(
            f"{where}: found elements of type {typestr!r}, "
            "wanted little-endian bool, int, uint, float or complex"
        )
    device = _device_index(where, getattr(value, "device", None))
    # An empty array's address may be None.
    return Pointer(address=address or 0, dtype=dtype, device=device, torch=False)
