"""The variants that one combination of axes stands for, and the job that compiles each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Literal, cast, get_args

from aot.build.evaluate import Combination, NoValue, constexprs_of, evaluate
from aot.build.jobs import CompileJob
from aot.dtypes import parse_dtype
from aot.errors import UsageError
from aot.manifest import Arg, Bound, Const, ConstexprArg, Options, PointerArg, ScalarArg, Variant
from aot.spec import Const as AxisValue
from aot.spec import KernelSpec, PointerParam, ScalarParam, Specialization, Table
from aot.target import MAX_GRID, Target


def variants_of(spec: KernelSpec, combination: Combination, target: Target) -> Iterator[Variant]:
    """Yield the variants of a combination on a target, those with the strictest claims first.

    Raises ``NoValue`` for a value that the combination does not have, ``UsageError`` for
    what the target does not allow.
    """
    options = _options(spec, combination.values, target)
    bounds = tuple(
        Bound(of=str(axis.of), max=bound) for axis, bound in combination.buckets if bound is not None
    )
    for args in _args(spec, combination.values, target):
        variant = Variant(
            kernel=spec.kernel,
            target=str(target),
            axes=dict(combination.values),
            args=args,
            bounds=bounds,
            options=options,
        )
        _check_grid(spec, variant)
        yield variant


def _options(spec: KernelSpec, values: Mapping[str, AxisValue], target: Target) -> Options:
    launch = spec.launch
    constexprs = constexprs_of(spec, values, str(target))

    def number(name: str, value: object, limit: int, power: bool) -> int:
        found = evaluate(value, values, constexprs, str(target))  # type: ignore[arg-type]
        wanted = f"a power of 2 up to {limit}" if power else f"an integer from 1 to {limit}"
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= limit:
            raise NoValue(f"found {name} {found!r}, wanted {wanted}")
        if power and found & (found - 1):
            raise NoValue(f"found {name} {found}, wanted {wanted}")
        return found

    num_ctas = number("num_ctas", launch.num_ctas, 16, True)
    if num_ctas > 1 and target.capability < 90:
        raise UsageError(f"num_ctas {num_ctas} needs capability 9.0 or newer, {target} is {target.dotted}")
    return Options(
        num_warps=number("num_warps", launch.num_warps, 32, True),
        num_stages=number("num_stages", launch.num_stages, 32, False),
        num_ctas=num_ctas,
        fp_fusion=launch.fp_fusion,
        maxnreg=None if launch.maxnreg is None else number("maxnreg", launch.maxnreg, 255, False),
    )


def _args(spec: KernelSpec, values: Mapping[str, AxisValue], target: Target) -> Iterator[tuple[Arg, ...]]:
    """Yield the arguments of every claim of a combination, the strictest claims first."""
    constexprs = constexprs_of(spec, values, str(target))

    def name_of(text: str) -> str:
        return str(values[text[1:]]) if text.startswith("$") else text

    choices: list[list[Arg]] = []
    for param in spec.params:
        if isinstance(param, PointerParam):
            dtype = parse_dtype(name_of(param.dtype))
            pointer = dtype.pointer(target.capability, param.storage)
            choices.append(
                [
                    PointerArg(name=param.name, type=pointer, dtype=dtype.name, align=_align(claim))
                    for claim in _claims(param.align, values, target)
                ]
            )
        elif isinstance(param, ScalarParam):
            scalar = parse_dtype(name_of(param.type)).scalar
            if scalar is None:
                raise NoValue(f"found {param.type} for {param.name}, which cannot be passed by value")
            choices.append(
                [
                    ScalarArg(name=param.name, type=scalar, claim=_claim(claim))
                    for claim in _claims(param.specialize, values, target)
                ]
            )
        else:
            choices.append([ConstexprArg(name=param.name, value=constexprs[param.name])])
    yield from product(*choices)


def _claims(
    claims: tuple[object, ...] | Table, values: Mapping[str, AxisValue], target: Target
) -> tuple[object, ...]:
    return (evaluate(claims, values, {}, str(target)),) if isinstance(claims, Table) else claims


def _align(claim: object) -> Literal[1, 16]:
    if claim == 16:
        return 16
    if claim == 1:
        return 1
    raise NoValue(f"found align {claim!r}, wanted 16 or 1")


def _claim(claim: object) -> Specialization:
    for known in get_args(Specialization):
        if str(claim) == known:
            return cast(Specialization, known)
    raise NoValue(f"found specialize {claim!r}, wanted 1, 16 or any")


def job_of(spec: KernelSpec, path: str, sha256: str, variant: Variant) -> CompileJob:
    """Return the job that compiles ``variant`` from the source file ``path`` of closure hash ``sha256``."""
    signature = []
    constexprs: list[tuple[str, Const]] = []
    divisible = []
    for arg in variant.args:
        if isinstance(arg, ConstexprArg):
            signature.append((arg.name, "constexpr"))
            constexprs.append((arg.name, arg.value))
        elif isinstance(arg, ScalarArg) and arg.claim == "1":
            signature.append((arg.name, "constexpr"))
            constexprs.append((arg.name, 1))
        else:
            signature.append((arg.name, arg.type))
            if (isinstance(arg, PointerArg) and arg.align == 16) or (
                isinstance(arg, ScalarArg) and arg.claim == "16"
            ):
                divisible.append(arg.name)
    return CompileJob(
        path=path,
        module=spec.source.module,
        function=spec.source.function,
        source_sha256=sha256,
        signature=tuple(signature),
        constexprs=tuple(constexprs),
        divisible=tuple(divisible),
        options=variant.options,
        target=variant.target,
    )


def _check_grid(spec: KernelSpec, variant: Variant) -> None:
    """Refuse a bucket whose largest extent needs a grid over CUDA's limits.

    Only extents that a bucket bounds are known here; launching checks the rest.
    """
    if spec.launch.grid is None:
        return
    known: dict[str, int] = {bound.of: bound.max for bound in variant.bounds}
    for arg in variant.args:
        if isinstance(arg, ConstexprArg) and isinstance(arg.value, int):
            known[arg.name] = arg.value
    known |= {f"${name}": value for name, value in variant.axes.items() if isinstance(value, int)}
    for axis, expr, limit in zip("xyz", spec.launch.grid, MAX_GRID, strict=False):
        if expr.names() <= known.keys() and expr.evaluate(known) > limit:
            raise UsageError(
                f"grid {axis} '{expr}' is {expr.evaluate(known)} at the bucket's bound, "
                f"wanted at most {limit}; put the large extent on x, or lower the bound"
            )
