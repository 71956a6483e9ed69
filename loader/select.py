"""Which prebuilt variant serves a call: a pure choice in which every "no" has a reason.

Nothing here knows torch, a driver or a file: ``aot explain`` runs the same code on a
machine without a GPU that a launch runs with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from aot.errors import BundleError
from aot.expr import Expr, ExprError
from aot.loader.packing import Number, scalar_fault
from aot.manifest import (
    Bound,
    Const,
    ConstexprArg,
    DTypeConst,
    Entry,
    Kernel,
    PointerArg,
    ScalarArg,
    TableRef,
    Variant,
    same_const,
)
from aot.target import Target

OptionValue = bool | int | None


class PointerValue(Struct, frozen=True, kw_only=True):
    """What selection looks at in a tensor: torch's name of its ``dtype``, and whether its
    address is a multiple of 16 bytes. None where it is not known."""

    dtype: str | None
    aligned: bool | None


class Request(Struct, frozen=True, kw_only=True):
    """One call as plain data.

    ``args``: a value for each pointer and scalar parameter; one that is missing is unknown, and
    an unknown is no reason to reject. ``constexprs``: those the caller gave, and the kernel's
    defaults of those the caller left out; any other is the variant's to decide. ``options``: the
    compile options that the caller insists on. ``capability`` is the device's (major * 10 +
    minor), ``max_shared`` the dynamic shared memory in bytes that it allows one block.
    """

    kernel: str
    args: Mapping[str, PointerValue | Number]
    constexprs: Mapping[str, Const]
    options: Mapping[str, OptionValue]
    capability: int
    max_shared: int


FaultKind = Literal["target", "shared", "dtype", "align", "type", "claim", "bound", "constexpr", "option"]


class Fault(Struct, frozen=True, kw_only=True):
    """Why a variant does not serve a request. ``name`` is the parameter, option or expression."""

    kind: FaultKind
    name: str
    reason: str


class Decision(Struct, frozen=True, kw_only=True):
    """One step: ``variant`` was chosen (``fault`` None) or rejected.

    ``variant`` None stands for all ``count`` variants of a table that was passed over unread.
    """

    target: str
    types: tuple[str, ...]
    variant: Variant | None
    count: int
    fault: Fault | None


class Selection(Struct, frozen=True, kw_only=True):
    """The entry that serves the request, or None, and every decision on the way to it."""

    entry: Entry | None
    decisions: tuple[Decision, ...]


def select(request: Request, entries: Iterable[Entry]) -> Selection:
    """Return the first entry that nothing speaks against: the device's best target first,
    then in the order of ``entries``."""
    decisions: list[Decision] = []
    for entry in sorted(entries, key=lambda e: _target(e.variant.target).preference(), reverse=True):
        decision = _decide(request, entry)
        decisions.append(decision)
        if decision.fault is None:
            return Selection(entry=entry, decisions=tuple(decisions))
    return Selection(entry=None, decisions=tuple(decisions))


def select_kernel(request: Request, kernel: Kernel, read: Callable[[TableRef], Iterable[Entry]]) -> Selection:
    """As :func:`select`, over the tables of a kernel, of which only those are read (``read``)
    whose target and dtypes fit the request."""
    decisions: list[Decision] = []
    pointers = [p.name for p in kernel.params if p.kind == "pointer"]
    for ref in sorted(kernel.tables, key=lambda t: _target(t.target).preference(), reverse=True):
        fault = _target_fault(ref.target, request) or _types_fault(pointers, ref.types, request)
        if fault is not None:
            decisions.append(
                Decision(target=ref.target, types=ref.types, variant=None, count=ref.count, fault=fault)
            )
            continue
        for entry in read(ref):
            decision = _decide(request, entry)
            decisions.append(decision)
            if decision.fault is None:
                return Selection(entry=entry, decisions=tuple(decisions))
    return Selection(entry=None, decisions=tuple(decisions))


def choose(request: Request, kernel: Kernel, read: Callable[[TableRef], Iterable[Entry]]) -> Entry | None:
    """The entry that :func:`select_kernel` gives, without the reasons: a call that is served needs none,
    and there are as many as the kernel has tables."""
    pointers = [p.name for p in kernel.params if p.kind == "pointer"]
    wanted = tuple([getattr(request.args.get(name), "dtype", None) for name in pointers])
    if None in wanted:
        fit = [ref for ref in kernel.tables if _types_fault(pointers, ref.types, request) is None]
    else:
        fit = [ref for ref in kernel.tables if ref.types == wanted]
    for ref in sorted(fit, key=lambda t: _target(t.target).preference(), reverse=True):
        if _target_fault(ref.target, request) is None:
            for entry in read(ref):
                if next(faults(entry, request), None) is None:
                    return entry
    return None


def reject_reason(entry: Entry, request: Request) -> str | None:
    """Say why ``entry`` does not serve ``request``, or None where it does."""
    fault = next(faults(entry, request), None)
    return None if fault is None else fault.reason


def faults(entry: Entry, request: Request) -> Iterator[Fault]:
    """Every reason why ``entry`` does not serve ``request``, the gravest first."""
    variant = entry.variant
    wrong_target = _target_fault(variant.target, request)
    if wrong_target is not None:
        yield wrong_target
    if entry.binary.shared > request.max_shared:
        yield Fault(
            kind="shared",
            name="shared",
            reason=f"it needs {entry.binary.shared} bytes of shared memory, "
            f"the device allows {request.max_shared}",
        )
    for arg in variant.args:
        if isinstance(arg, ConstexprArg):
            fault = _constexpr_fault(arg, request.constexprs)
        elif arg.name not in request.args:
            fault = None
        elif isinstance(arg, PointerArg):
            fault = _pointer_fault(arg, request.args[arg.name])
        else:
            fault = _scalar_fault(arg, request.args[arg.name])
        if fault is not None:
            yield fault
    for bound in variant.bounds:
        fault = _bound_fault(bound, request.args)
        if fault is not None:
            yield fault
    yield from _option_faults(variant, request.options)


def show_const(value: Const) -> str:
    """A constexpr as a reason names it: a dtype by its name, anything else as Python writes it."""
    return value.dtype if isinstance(value, DTypeConst) else repr(value)


def extents(args: Mapping[str, PointerValue | Number]) -> dict[str, int]:
    """The arguments that an expression can use: the integers (a bool counts as 0 or 1)."""
    return {name: int(value) for name, value in args.items() if isinstance(value, int)}


@lru_cache(maxsize=256)
def _target(text: str) -> Target:
    return Target.parse(text)


@lru_cache(maxsize=4096)
def parsed(text: str) -> Expr:
    """``Expr.parse``, remembered: a bundle has few expressions and uses them on every call."""
    try:
        return Expr.parse(text)
    except ExprError as error:
        raise BundleError(f"found expression {text!r} in the bundle: {error}; build it again") from None


def _decide(request: Request, entry: Entry) -> Decision:
    return Decision(
        target=entry.variant.target,
        types=entry.variant.types,
        variant=entry.variant,
        count=1,
        fault=next(faults(entry, request), None),
    )


def _target_fault(target: str, request: Request) -> Fault | None:
    reason = _target(target).reject_reason(request.capability)
    return None if reason is None else Fault(kind="target", name=target, reason=reason)


def _types_fault(pointers: Iterable[str], types: Iterable[str], request: Request) -> Fault | None:
    for name, dtype in zip(pointers, types, strict=False):
        value = request.args.get(name)
        if isinstance(value, PointerValue) and value.dtype is not None and value.dtype != dtype:
            return _dtype_fault(name, dtype, value.dtype)
    return None


def _dtype_fault(name: str, dtype: str, found: str) -> Fault:
    return Fault(kind="dtype", name=name, reason=f"{name} is {dtype}, the call has {found}")


def _pointer_fault(arg: PointerArg, value: PointerValue | Number) -> Fault | None:
    if not isinstance(value, PointerValue):
        return Fault(kind="type", name=arg.name, reason=f"{arg.name} is a tensor, the call has {value!r}")
    if value.dtype is not None and value.dtype != arg.dtype:
        return _dtype_fault(arg.name, arg.dtype, value.dtype)
    if arg.align == 16 and value.aligned is False:
        return Fault(kind="align", name=arg.name, reason=f"{arg.name} is not aligned to 16 bytes")
    return None


def _scalar_fault(arg: ScalarArg, value: PointerValue | Number) -> Fault | None:
    name = arg.name
    if isinstance(value, PointerValue):
        return Fault(kind="type", name=name, reason=f"{name} is a number, the call has a tensor")
    wrong = scalar_fault(name, arg.type, value)
    if wrong is not None:
        return Fault(kind="type", name=name, reason=wrong)
    if arg.claim == "1" and value != 1:
        return Fault(kind="claim", name=name, reason=f"{name} = {value!r} is not 1")
    if arg.claim == "16" and value % 16 != 0:
        return Fault(kind="claim", name=name, reason=f"{name} = {value!r} is not a multiple of 16")
    return None


def _constexpr_fault(arg: ConstexprArg, given: Mapping[str, Const]) -> Fault | None:
    if arg.name not in given or same_const(arg.value, given[arg.name]):
        return None
    reason = f"{arg.name} is {show_const(arg.value)}, the call has {show_const(given[arg.name])}"
    return Fault(kind="constexpr", name=arg.name, reason=reason)


def _bound_fault(bound: Bound, args: Mapping[str, PointerValue | Number]) -> Fault | None:
    expr = parsed(bound.of)
    values = extents(args)
    if not expr.names() <= values.keys():
        return None
    try:
        value = expr.evaluate(values)
    except ExprError as error:
        return Fault(kind="bound", name=bound.of, reason=f"the bucket's extent has no value: {error}")
    if value > bound.max:
        reason = f"{bound.of} = {value} is over the bucket's bound {bound.max}"
        return Fault(kind="bound", name=bound.of, reason=reason)
    return None


def _option_faults(variant: Variant, given: Mapping[str, OptionValue]) -> Iterator[Fault]:
    for name, wanted in given.items():
        found = getattr(variant.options, name)
        if found != wanted:
            yield Fault(kind="option", name=name, reason=f"{name} is {found}, the call has {wanted}")
