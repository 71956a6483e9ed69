"""A Python call to plain data: which value is which parameter, and what each value is.

Calls are bound as a ``@triton.jit`` function's are: positional and keyword arguments,
constexprs among them, compile options as further keywords.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from msgspec import Struct

from aot.dtypes import ALIASES, DTYPES
from aot.errors import LaunchError, nearest
from aot.loader.packing import Number
from aot.loader.select import OptionValue, PointerValue
from aot.loader.tensors import Pointer, read_pointer
from aot.manifest import Const, DTypeConst, Kernel

# The keywords that a JIT call accepts beside parameters, and the manifest's names of them.
OPTIONS = {
    "num_warps": "num_warps",
    "num_stages": "num_stages",
    "num_ctas": "num_ctas",
    "maxnreg": "maxnreg",
    "enable_fp_fusion": "fp_fusion",
}

_TRITON_DTYPES = {d.triton: d.name for d in reversed(DTYPES.values())} | {"int1": "bool"}


class Call(Struct, frozen=True, kw_only=True):
    """A bound call. ``given`` are the objects as they came, for the grid's callable; the rest
    is what they mean. ``device`` is the CUDA device of the tensors, None where none says."""

    given: Mapping[str, object]
    pointers: Mapping[str, Pointer]
    scalars: Mapping[str, Number]
    constexprs: Mapping[str, Const]
    options: Mapping[str, OptionValue]
    device: int | None

    def values(self) -> dict[str, PointerValue | Number]:
        """Pointers and scalars as selection sees them."""
        seen: dict[str, PointerValue | Number] = {
            name: PointerValue(dtype=p.dtype, aligned=p.address % 16 == 0)
            for name, p in self.pointers.items()
        }
        seen.update(self.scalars)
        return seen

    def key(self) -> tuple[object, ...]:
        """All that selection looks at, to compare calls by. Types count: 1, 1.0 and True differ."""
        return (
            tuple([(p.dtype, p.address % 16 == 0) for p in self.pointers.values()]),
            tuple(self.scalars.values()),
            tuple(map(type, self.scalars.values())),
            tuple(self.constexprs.items()),
            tuple(map(type, self.constexprs.values())),
            tuple(self.options.items()),
        )


def read_call(kernel: Kernel, args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
    """Bind and read a call. Raises ``LaunchError`` that names kernel and parameter."""
    given, options = bind(kernel, args, kwargs)
    pointers: dict[str, Pointer] = {}
    scalars: dict[str, Number] = {}
    constexprs: dict[str, Const] = {}
    for param in kernel.params:
        name = param.name
        where = f"kernel {kernel.name!r}: {name}"
        if name not in given:
            if param.has_default:
                given[name] = param.default
            elif param.kind == "constexpr":
                continue
            else:
                wanted = "a tensor" if param.kind == "pointer" else "a number"
                raise LaunchError(f"{where}: found no value, wanted {wanted}")
        value = given[name]
        if param.kind == "pointer":
            pointers[name] = read_pointer(where, value)
        elif param.kind == "scalar":
            scalars[name] = read_scalar(where, value)
        else:
            constexprs[name] = read_const(where, value)
    return Call(
        given=given,
        pointers=pointers,
        scalars=scalars,
        constexprs=constexprs,
        options=options,
        device=_one_device(kernel.name, pointers),
    )


def bind(
    kernel: Kernel, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, OptionValue]]:
    """Return the values by parameter name, and the compile options by the manifest's name."""
    names = [param.name for param in kernel.params]
    if len(args) > len(names):
        raise LaunchError(
            f"kernel {kernel.name!r}: found {len(args)} positional arguments, "
            f"wanted at most {len(names)} ({', '.join(names)})"
        )
    given = dict(zip(names, args, strict=False))
    options: dict[str, OptionValue] = {}
    for name, value in kwargs.items():
        if name in given:
            raise LaunchError(f"kernel {kernel.name!r}: {name} was given twice, by position and by name")
        if name in names:
            given[name] = value
        elif name in OPTIONS:
            options[OPTIONS[name]] = _read_option(f"kernel {kernel.name!r}: {name}", value)
        else:
            raise LaunchError(
                f"kernel {kernel.name!r}: found argument {name!r}, wanted one of {', '.join(names)} "
                f"or an option ({', '.join(OPTIONS)})" + nearest(name, [*names, *OPTIONS])
            )
    return given, options


def read_scalar(where: str, value: object) -> Number:
    """Return the Python number that ``value`` is or stands for (numpy and torch scalars too)."""
    for plain in (bool, int, float):
        if isinstance(value, plain):
            return plain(value)
    if getattr(value, "is_cuda", False):
        raise LaunchError(
            f"{where}: found a tensor on the GPU, wanted a number; call .item() on it (it waits for the GPU)"
        )
    if str(getattr(value, "dtype", "")) in ("bool", "torch.bool") and getattr(value, "shape", None) == ():
        return bool(value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    if hasattr(value, "__float__"):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise LaunchError(f"{where}: found {_named(value)}, wanted a number")


def read_const(where: str, value: object) -> Const:
    """Return a constexpr as the manifest writes it; a dtype object of torch or Triton by its name."""
    if type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    if value is None or isinstance(value, DTypeConst):
        return value
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    # torch.dtype and triton.language.dtype, told by their names: neither is imported here.
    dtype = dtype_name(value) if type(value).__name__ == "dtype" else None
    if dtype is not None:
        return DTypeConst(dtype)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise LaunchError(
            f"{where}: found {_named(value)}, wanted a constexpr: a bool, int, float, str, dtype or None"
        ) from None


def dtype_name(value: object) -> str | None:
    """torch's name of a dtype object of torch or Triton, or None where it is none."""
    name = str(value).removeprefix("torch.")
    if name in DTYPES:
        return name
    return ALIASES.get(name) or _TRITON_DTYPES.get(name)


def _read_option(where: str, value: object) -> OptionValue:
    if value is None or isinstance(value, bool):
        return value
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise LaunchError(f"{where}: found {_named(value)}, wanted an integer") from None


def _one_device(kernel: str, pointers: Mapping[str, Pointer]) -> int | None:
    first: str | None = None
    device: int | None = None
    for name, pointer in pointers.items():
        if pointer.device is None:
            continue
        if device is None:
            first, device = name, pointer.device
        elif pointer.device != device:
            raise LaunchError(
                f"kernel {kernel!r}: {first} is on cuda:{device} and {name} on cuda:{pointer.device}, "
                "wanted all tensors on one device"
            )
    return device


def _named(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
