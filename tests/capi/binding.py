"""The C API through ctypes, so that a test can hand it memory that Python holds."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capi import compiled

_KINDS = {"pointer": 1, "int": 2, "uint": 3, "float": 4, "bool": 5, "string": 6, "dtype": 7, "none": 8}


class Error(ctypes.Structure):
    """``aot_error``."""

    _fields_ = (("status", ctypes.c_int), ("driver_code", ctypes.c_int), ("text", ctypes.c_char * 4096))


class _Value(ctypes.Union):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("i64", ctypes.c_int64),
        ("f64", ctypes.c_double),
        ("boolean", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )


class Arg(ctypes.Structure):
    """``aot_arg``."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("value", _Value),
        ("dtype", ctypes.c_char_p),
    )


class Grid(ctypes.Structure):
    """``aot_grid``."""

    _fields_ = (("x", ctypes.c_int64), ("y", ctypes.c_int64), ("z", ctypes.c_int64))


class Refused(Exception):
    """A status that is not ``AOT_OK``, with the text of the error."""


def _arg(value: Any, name: str | None = None) -> Arg:
    arg = Arg(name=name.encode() if name else None)
    if hasattr(value, "data_ptr"):
        arg.kind = _KINDS["pointer"]
        arg.value.address = value.data_ptr()
        arg.dtype = str(value.dtype).removeprefix("torch.").encode()
    elif isinstance(value, bool):
        arg.kind, arg.value.boolean = _KINDS["bool"], value
    elif isinstance(value, int):
        arg.kind, arg.value.i64 = _KINDS["int"], value
    elif isinstance(value, float):
        arg.kind, arg.value.f64 = _KINDS["float"], value
    elif isinstance(value, str):
        arg.kind, arg.value.text = _KINDS["string"], value.encode()
    else:
        assert value is None
        arg.kind = _KINDS["none"]
    return arg


def _args(args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, int]:
    made = [_arg(a) for a in args] + [_arg(a, name) for name, a in named.items()]
    return (Arg * len(made))(*made), len(made)


def _grid(grid: Sequence[int] | None) -> Any:
    return None if grid is None else ctypes.byref(Grid(*grid, *[1] * (3 - len(grid))))


class Api:
    """``aot.h`` as a shared library, compiled into ``folder``. Calls let other Python threads run."""

    def __init__(self, folder: Path) -> None:
        source = folder / "aot.c"
        # Another compiler than the one of the tests without a GPU may warn of something else.
        flags = ("-O2", "-shared", "-fPIC", "-Wno-error")
        source.write_text('#define AOT_IMPLEMENTATION\n#include "aot.h"\n')
        self.library = ctypes.CDLL(str(compiled(source, folder / "libaot.so", *flags)))

    def check(self, call: str, *args: Any) -> None:
        """Call a function that takes an error last. Raises ``Refused``."""
        error = Error()
        if getattr(self.library, call)(*args, ctypes.byref(error)):
            raise Refused(error.text.decode())

    def open(self, path: str) -> Opened:
        """Open a bundle."""
        handle = ctypes.c_void_p()
        self.check("aot_bundle_open", path.encode(), ctypes.byref(handle))
        return Opened(self, handle)


class Opened:
    """An open bundle."""

    def __init__(self, api: Api, handle: ctypes.c_void_p) -> None:
        self.api = api
        self.handle = handle

    def close(self) -> None:
        self.api.library.aot_bundle_close(self.handle)

    def _kernel(self, name: str) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        self.api.check("aot_bundle_kernel", self.handle, name.encode(), ctypes.byref(kernel))
        return kernel

    def launch(
        self, name: str, *args: Any, grid: Sequence[int] | None = None, stream: int = 0, **named: Any
    ) -> None:
        """``aot_kernel_launch`` on device 0."""
        packed, count = _args(args, named)
        self.api.check(
            "aot_kernel_launch",
            self._kernel(name),
            ctypes.c_int(0),
            ctypes.c_void_p(stream),
            _grid(grid),
            packed,
            ctypes.c_size_t(count),
        )

    def prepare(self, name: str, *args: Any, grid: Sequence[int] | None = None, **named: Any) -> Held:
        """``aot_kernel_prepare`` on device 0."""
        packed, count = _args(args, named)
        call = ctypes.c_void_p()
        self.api.check(
            "aot_kernel_prepare",
            self._kernel(name),
            ctypes.c_int(0),
            _grid(grid),
            packed,
            ctypes.c_size_t(count),
            ctypes.byref(call),
        )
        return Held(self.api, call)


class Held:
    """A prepared call."""

    def __init__(self, api: Api, handle: ctypes.c_void_p) -> None:
        self.api = api
        self.handle = handle

    def __call__(self, *tensors: Any, stream: int = 0) -> None:
        """``aot_call_launch`` with the tensors' addresses."""
        pointers = (ctypes.c_uint64 * len(tensors))(*(t.data_ptr() for t in tensors))
        self.api.check(
            "aot_call_launch",
            self.handle,
            ctypes.c_void_p(stream),
            pointers,
            ctypes.c_size_t(len(tensors)),
        )

    def symbol(self) -> str:
        """The symbol of the variant that was chosen."""
        function = self.api.library.aot_call_symbol
        function.restype = ctypes.c_char_p
        return str(function(self.handle).decode())

    def free(self) -> None:
        self.api.library.aot_call_free(self.handle)
