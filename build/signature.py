"""The parameters of a kernel function, read from its source's syntax tree.

The file is found and parsed, never imported: neither it nor a parent package runs, and
Triton need not be installed.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from aot.errors import UsageError, nearest
from aot.spec import Const, Source

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter. ``default`` is its default where that is a literal; else ``has_default`` is False."""

    name: str
    constexpr: bool
    has_default: bool
    default: Const


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A kernel function: the absolute ``path`` of its file, the ``line`` of its ``def``, its parameters."""

    path: str
    line: int
    function: str
    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(p.name for p in self.parameters)

    @property
    def constexprs(self) -> frozenset[str]:
        """The names of the parameters that are annotated ``tl.constexpr``."""
        return frozenset(p.name for p in self.parameters if p.constexpr)

    @property
    def defaults(self) -> dict[str, Const]:
        """The literal defaults by parameter name."""
        return {p.name: p.default for p in self.parameters if p.has_default}


def read_signature(source: Source) -> Signature:
    """Read the parameters of ``source``'s function.

    Raises ``UsageError``: no such file or module, no such function, a function that is not
    decorated with ``triton.jit`` or ``gluon.jit``, ``*args``, or Python that does not parse.
    """
    path = source_path(source)
    functions = _functions(path, _read(path, source))
    found = [f for f in functions if f.name == source.function]
    if not found:
        names = list(dict.fromkeys(f.name for f in functions if _is_jit(f))) or [f.name for f in functions]
        wanted = f"one of {', '.join(names)}" if names else "a @triton.jit function at the file's top level"
        raise UsageError(
            f"found no function {source.function!r} in {path}, wanted {wanted}"
            + nearest(source.function, names)
        )
    if len(found) > 1:
        lines = " and ".join(str(f.lineno) for f in found)
        raise UsageError(
            f"found {source.function!r} defined {len(found)} times in {path} (lines {lines}), "
            "wanted one definition"
        )
    return _signature(found[0], path)


def read_source(source: Source) -> bytes:
    """Return the bytes of the source's file. Raises ``UsageError`` as :func:`read_signature` does."""
    return _read(source_path(source), source)


def source_path(source: Source) -> str:
    """Return the absolute path of the source's file. Raises ``UsageError`` where there is none.

    A module is looked for on ``sys.path``, and below its package's folders, as an import
    would, but no module of the package is run.
    """
    if source.path is not None:
        return os.path.abspath(source.path)
    if source.module is None:
        raise UsageError(f"found source {source.written!r}, wanted a file or a module")
    top, *rest = source.module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise UsageError(
            f"found no module {top!r} on Python's path, wanted the one of {source.written!r}; "
            "install it or set PYTHONPATH"
        )
    folders = list(spec.submodule_search_locations or ())
    path = spec.origin if spec.origin and os.path.isabs(spec.origin) else None
    known = top
    for part in rest:
        path, inside = _find_in(part, folders)
        if path is None and not inside:
            raise UsageError(
                f"found no module {part!r} in {known} ({', '.join(folders) or 'not a package'}), "
                f"wanted the one of {source.written!r}" + nearest(part, _modules_in(folders))
            )
        folders = inside
        known = f"{known}.{part}"
    if path is None or not path.endswith(".py"):
        raise UsageError(
            f"found no Python source for module {known} ({path or 'a package without __init__.py'}), "
            "wanted a .py file"
        )
    return os.path.abspath(path)


def _find_in(name: str, folders: list[str]) -> tuple[str | None, list[str]]:
    """Return a module's file and a package's folders, in the import system's order of preference."""
    portions = []
    for folder in folders:
        package = os.path.join(folder, name)
        if os.path.isfile(init := os.path.join(package, "__init__.py")):
            return init, [package]
        if os.path.isfile(file := package + ".py"):
            return file, []
        if os.path.isdir(package):
            portions.append(package)
    return None, portions


def _modules_in(folders: Iterable[str]) -> list[str]:
    return sorted(
        entry.removesuffix(".py")
        for folder in folders
        if os.path.isdir(folder)
        for entry in os.listdir(folder)
    )


def _read(path: str, source: Source) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        found = (error.strerror or str(error)).lower()
        raise UsageError(
            f"found {found} at {path}, wanted the Python file of source {source.written!r}"
        ) from None


@lru_cache(maxsize=32)
def _functions(path: str, data: bytes) -> tuple[Function, ...]:
    """Return the functions that importing the file would define at its top level."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(data, path)
    except SyntaxError as error:
        raise UsageError(
            f"found Python that does not parse at {path}:{error.lineno or 1} ({error.msg}), "
            "wanted the kernel's source"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"found Python that does not parse at {path} ({error}), wanted the kernel's source"
        ) from None
    return tuple(_top_level(tree.body))


def _top_level(body: Iterable[ast.stmt]) -> Iterator[Function]:
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement
            case ast.If() | ast.For() | ast.While():
                yield from _top_level([*statement.body, *statement.orelse])
            case ast.With():
                yield from _top_level(statement.body)
            case ast.Try():
                yield from _top_level(statement.body)
                for handler in statement.handlers:
                    yield from _top_level(handler.body)
                yield from _top_level([*statement.orelse, *statement.finalbody])


def _dotted(node: ast.expr) -> str:
    """Return ``a.b`` of a name, an attribute or a call of one; "" of anything else."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{_dotted(node.value)}.{node.attr}"
        case ast.Call():
            return _dotted(node.func)
    return ""


def _is_jit(function: Function) -> bool:
    return any(_dotted(d).rsplit(".", 1)[-1] == "jit" for d in function.decorator_list)


def _is_constexpr(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        text = annotation.value.strip()
    else:
        text = _dotted(annotation) if annotation is not None else ""
    return text.rsplit(".", 1)[-1] == "constexpr"


def _signature(function: Function, path: str) -> Signature:
    where = f"{path}:{function.lineno}"
    if not _is_jit(function):
        raise UsageError(
            f"found {function.name!r} at {where} without a jit decorator, wanted a @triton.jit function"
        )
    args = function.args
    for star, arg in (("*", args.vararg), ("**", args.kwarg)):
        if arg is not None:
            raise UsageError(
                f"found {star}{arg.arg} in {function.name!r} at {where}, wanted every parameter by name"
            )
    positional = [*args.posonlyargs, *args.args]
    # Defaults belong to the last positional parameters; keyword-only ones have a list of their own.
    missing: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    defaults = [*missing, *args.defaults, *args.kw_defaults]
    parameters = []
    for arg, default in zip([*positional, *args.kwonlyargs], defaults, strict=True):
        known, value = _literal(default)
        parameters.append(
            Parameter(
                name=arg.arg,
                constexpr=_is_constexpr(arg.annotation),
                has_default=known,
                default=value,
            )
        )
    return Signature(path=path, line=function.lineno, function=function.name, parameters=tuple(parameters))


def _literal(node: ast.expr | None) -> tuple[bool, Const]:
    """Return whether a default is a literal that a spec could hold, and its value."""
    if node is None:
        return False, None
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, sign = node.operand, -1
        if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
            return False, None
    if not isinstance(node, ast.Constant):
        return False, None
    value = node.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # A manifest is JSON, which has no infinity; and no kernel takes an integer of more than 64 bits.
        fits = -(2**63) <= sign * value < 2**64 if isinstance(value, int) else math.isfinite(value)
        return (True, sign * value) if fits else (False, None)
    if sign == 1 and (value is None or isinstance(value, (bool, str))):
        return True, value
    return False, None
