"""Whether a combination of a spec serves a recorded call: the rules of ``aot.loader.select``, over ranges.

A record says that an integer lay between two bounds. A combination serves the record where it
serves every call in these bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aot.build.evaluate import Combination, NoValue, combinations, constexprs_of, evaluate, matches
from aot.build.variants import variants_of
from aot.dtypes import DTYPES, DType, parse_dtype
from aot.errors import UsageError
from aot.expr import Expr, ExprError
from aot.manifest import Const, DTypeConst, same_const
from aot.recordfile import (
    FLOAT_RANGES,
    ArgSeen,
    BoolSeen,
    FloatSeen,
    IntSeen,
    PointerSeen,
    Record,
    float_range,
)
from aot.spec import Const as AxisValue
from aot.spec import Fixed, KernelSpec, PointerParam, ScalarParam, Table, Value
from aot.target import Target

Range = tuple[int, int]
_LIMIT = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a combination does not serve a record. ``name`` is a parameter, an option or an extent."""

    kind: str
    name: str
    reason: str


def serves(spec: KernelSpec, record: Record) -> bool:
    """Whether a build of ``spec`` would serve the record's calls, as far as planning can know."""
    targets = runnable(spec, record)
    return any(
        next(faults(spec, combination, target, record), None) is None
        for combination in (combinations(spec) if targets else ())
        for target in targets
    )


def runnable(spec: KernelSpec, record: Record) -> list[Target]:
    """The targets of a spec that run on the record's device, the best first."""
    fit = [target for target in spec.targets if target.reject_reason(record.capability) is None]
    return sorted(fit, key=Target.preference, reverse=True)


def faults(spec: KernelSpec, combination: Combination, target: Target, record: Record) -> Iterator[Fault]:
    """Every reason why a combination on a target does not serve a record, cheap ones first."""
    values = combination.values
    seen = record.values
    for param in spec.params:
        arg = seen.get(param.name)
        if isinstance(param, PointerParam) and arg is not None:
            yield from _pointer(param, arg, values, target)
        elif isinstance(param, ScalarParam) and arg is not None:
            yield from _scalar(param, arg, values, target)
    for axis, bound in combination.buckets:
        if bound is not None:
            yield from _bound(axis.of, bound, seen)
    for rule in spec.exclude:
        if matches(rule, values, str(target)):
            yield Fault(kind="excluded", name="exclude", reason=f"the spec excludes it ({rule.why})")
    try:
        constexprs = constexprs_of(spec, values, str(target))
        options = {name: evaluate(value, values, constexprs, str(target)) for name, value in launch(spec)}
    except NoValue as error:
        yield Fault(kind="value", name="", reason=str(error))
        return
    wanted = record.consts
    agree = True
    for name, value in constexprs.items():
        if name in wanted and not same_const(value, wanted[name]):
            agree = False
            yield Fault(
                kind="constexpr",
                name=name,
                reason=f"{name} is {_show(value)}, the call has {_show(wanted[name])}",
            )
    for name, option in record.options.items():
        if options.get(name) != option:
            agree = False
            yield Fault(
                kind="option", name=name, reason=f"{name} is {options.get(name)}, the call has {option}"
            )
    if agree:
        yield from _refused(spec, combination, target)


def launch(spec: KernelSpec) -> list[tuple[str, Value]]:
    """The launch options as (name, value of the spec)."""
    options = spec.launch
    return [
        ("num_warps", options.num_warps),
        ("num_stages", options.num_stages),
        ("num_ctas", options.num_ctas),
        ("maxnreg", options.maxnreg if options.maxnreg is not None else Fixed(value=None)),
        ("fp_fusion", Fixed(value=options.fp_fusion)),
    ]


def fits(type_: str, arg: ArgSeen) -> str | None:
    """Say why the numbers of a record cannot be passed as the dtype ``type_``, or None where they can."""
    dtype = parse_dtype(type_)
    if isinstance(arg, PointerSeen):
        return f"{arg.name} is a number, the call has a tensor"
    if isinstance(arg, FloatSeen):
        if dtype.kind != "float":
            return f"{arg.name} is {dtype}, the call has a float"
        reach = FLOAT_RANGES.index(arg.fits)
        return None if reach <= _reach(dtype) else f"{arg.name} does not fit {dtype}"
    if dtype.kind == "float":
        fit = all(_is_float(value, dtype) for value in (arg.low, arg.high))
    else:
        low, high = int_range(dtype)
        fit = low <= arg.low and arg.high <= high
    return None if fit else f"{arg.name} = {_span(arg)} does not fit {dtype}"


def int_range(dtype: DType) -> Range:
    """The least and the largest value of an integer dtype."""
    if dtype.kind == "bool":
        return 0, 1
    bits = dtype.itemsize * 8
    return (0, 2**bits - 1) if dtype.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def claim_holds(claim: str, arg: ArgSeen) -> bool:
    """Whether every number of a record is what a specialization claims."""
    return claim == "any" or (isinstance(arg, (IntSeen, BoolSeen)) and arg.claim == claim)


def extent(of: Expr, seen: Mapping[str, ArgSeen]) -> int | None:
    """An upper bound of an extent over all calls of a record; None where an argument is not known.

    Raises ``ExprError`` where it has no value.
    """
    ranges = {a.name: (a.low, a.high) for a in seen.values() if isinstance(a, (IntSeen, BoolSeen))}
    return interval(of, ranges)[1] if of.names() <= ranges.keys() else None


def interval(expr: Expr, ranges: Mapping[str, Range]) -> Range:
    """The least and the largest value that an expression may have. Exact where every range is one value.

    Raises ``ExprError`` where a divisor may be zero or a value needs more than 64 bits.
    """
    if expr.op == "int":
        return expr.value, expr.value
    if expr.op == "name":
        return ranges[expr.name]
    low, high = _apply(expr, [interval(arg, ranges) for arg in expr.args])
    if low < -_LIMIT or high >= _LIMIT:
        raise ExprError(f"'{expr}' may be {high if high >= _LIMIT else low}, wanted at most 64 bits")
    return low, high


def _apply(expr: Expr, args: list[Range]) -> Range:
    (a, b), (c, d) = args[0], args[-1]
    match expr.op:
        case "neg":
            return -b, -a
        case "+":
            return a + c, b + d
        case "-":
            return a - d, b - c
        case "*":
            corners = [a * c, a * d, b * c, b * d]
            return min(corners), max(corners)
        case "//" | "cdiv":
            if c <= 0 <= d:
                raise ExprError(f"'{expr}' may divide by zero")
            sign = 1 if expr.op == "//" else -1
            corners = [sign * (sign * x // y) for x in (a, b) for y in (c, d)]
            return min(corners), max(corners)
        case "next_power_of_2":
            return power_of_2(a), power_of_2(b)
        case "min":
            return min(low for low, _ in args), min(high for _, high in args)
    return max(low for low, _ in args), max(high for _, high in args)


def power_of_2(value: int) -> int:
    """The least power of 2 that is at least ``value``; 1 for what is not positive."""
    return 1 << (value - 1).bit_length() if value > 0 else 1


def _name(text: str, values: Mapping[str, AxisValue]) -> str:
    return str(values[text[1:]]) if text.startswith("$") else text


def _claims(
    claims: tuple[object, ...] | Table, values: Mapping[str, AxisValue], target: Target
) -> tuple[str, ...]:
    found = (evaluate(claims, values, {}, str(target)),) if isinstance(claims, Table) else claims
    return tuple(map(str, found))


def _pointer(
    param: PointerParam, arg: ArgSeen, values: Mapping[str, AxisValue], target: Target
) -> Iterator[Fault]:
    name = param.name
    dtype = parse_dtype(_name(param.dtype, values))
    if not isinstance(arg, PointerSeen):
        yield Fault(kind="kind", name=name, reason=f"{name} is a tensor, the call has a number")
        return
    if arg.dtype is not None and arg.dtype != dtype.name:
        yield Fault(kind="dtype", name=name, reason=f"{name} is {dtype}, the call has {arg.dtype}")
    try:
        claims = _claims(param.align, values, target)
    except NoValue as error:
        yield Fault(kind="value", name=name, reason=str(error))
        return
    if arg.align == 1 and "1" not in claims:
        yield Fault(kind="align", name=name, reason=f"{name} must be aligned to 16 bytes")


def _scalar(
    param: ScalarParam, arg: ArgSeen, values: Mapping[str, AxisValue], target: Target
) -> Iterator[Fault]:
    name = param.name
    wrong = fits(_name(param.type, values), arg)
    if wrong is not None:
        kind = "kind" if isinstance(arg, PointerSeen) else "type"
        yield Fault(kind=kind, name=name, reason=wrong)
        return
    try:
        claims = _claims(param.specialize, values, target)
    except NoValue as error:
        yield Fault(kind="value", name=name, reason=str(error))
        return
    if not any(claim_holds(claim, arg) for claim in claims):
        yield Fault(
            kind="claim",
            name=name,
            reason=f"{name} = {_span(arg)} is not what 'specialize: {', '.join(claims)}' takes",
        )


def _bound(of: Expr, bound: int, seen: Mapping[str, ArgSeen]) -> Iterator[Fault]:
    try:
        most = extent(of, seen)
    except ExprError as error:
        yield Fault(kind="extent", name=str(of), reason=f"the bucket's extent has no value: {error}")
        return
    if most is not None and most > bound:
        yield Fault(kind="bound", name=str(of), reason=f"{of} = {most} is over the bucket's bound {bound}")


def _refused(spec: KernelSpec, combination: Combination, target: Target) -> Iterator[Fault]:
    try:
        next(variants_of(spec, combination, target))
    except (NoValue, UsageError) as error:
        yield Fault(kind="refused", name="", reason=str(error))


def _reach(dtype: DType) -> int:
    return FLOAT_RANGES.index(dtype.name) if dtype.name in FLOAT_RANGES else -1


def _is_float(value: int, dtype: DType) -> bool:
    try:
        return FLOAT_RANGES.index(float_range(float(value))) <= _reach(dtype)
    except OverflowError:
        return False


def _span(arg: ArgSeen) -> str:
    if isinstance(arg, (IntSeen, BoolSeen)):
        return str(arg.low) if arg.low == arg.high else f"{arg.low} to {arg.high}"
    return "a float"


def _show(value: Const) -> str:
    return value.dtype if isinstance(value, DTypeConst) else repr(value)


def scalar_types(arg: ArgSeen) -> Iterator[str]:
    """The dtypes that take the numbers of a record, those that kernels mostly have first."""
    if isinstance(arg, FloatSeen):
        names = ["float32", "float64"]
    else:
        names = ["int32", "int64", "uint64", "float32", "float64"]
    names += [d.name for d in DTYPES.values() if d.scalar and d.name not in names]
    yield from (name for name in names if fits(name, arg) is None)
