"""Holes: inputs that a spec declares and no variant takes.

A request fixes the pointers' dtypes and the constexprs that come straight from an axis;
everything else (addresses, values, extents) varies at run time. Within one such group a
variant that claims nothing takes what any stricter one takes, so it is enough to ask, at
each bucket bound and beyond the last, whether such a variant exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product

from aot.build.filters import spell
from aot.build.plan import PlannedKernel, dtype_of
from aot.expr import Expr
from aot.manifest import ConstexprArg, PointerArg, ScalarArg, Variant, encode
from aot.spec import BucketAxis, ConstexprParam, DTypeValue, KernelSpec

_MAX_POINTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """``what`` no variant of the group takes; ``group`` are the axis values that fix it."""

    kernel: str
    target: str
    op: str
    dtype: str
    group: str
    what: str

    def __str__(self) -> str:
        return f"{self.kernel} {self.group} on {self.target}: no variant for {self.what}"


def plan_holes(kernels: Sequence[PlannedKernel]) -> Iterator[Hole]:
    """Yield the holes of a plan's kernels.

    What a kernel leaves to its ``general`` kernel is none, where that one has variants for the same
    target, op and dtype; its own holes are named under its own name.
    """
    served = {
        (kernel.spec.kernel, v.variant.target, _op(v.variant), dtype_of(v.variant))
        for kernel in kernels
        for v in kernel.variants
    }
    for kernel in kernels:
        for hole in holes(kernel):
            if (kernel.spec.general, hole.target, hole.op, hole.dtype) not in served:
                yield hole


def holes(kernel: PlannedKernel) -> Iterator[Hole]:
    """Yield the holes of one kernel, in the order of its variants."""
    fixed = _fixed_constexprs(kernel.spec)
    groups: dict[tuple[str, tuple[str, ...], bytes], list[Variant]] = {}
    for planned in kernel.variants:
        variant = planned.variant
        consts = [a for a in variant.args if isinstance(a, ConstexprArg) and a.name in fixed]
        groups.setdefault((variant.target, variant.types, encode(consts)), []).append(variant)
    for (target, types, _), variants in groups.items():
        consts = [a for a in variants[0].args if isinstance(a, ConstexprArg) and a.name in fixed]
        names = [*dict.fromkeys(types), *(f"{a.name}={spell(a.value)}" for a in consts)]
        for what in _missing(variants):
            yield Hole(
                kernel=kernel.spec.kernel,
                target=target,
                op=_op(variants[0]),
                dtype=dtype_of(variants[0]),
                group=" ".join(names),
                what=what,
            )


def _op(variant: Variant) -> str:
    """The ``op`` axis; kernels without one compute one thing, whatever each is called."""
    return str(variant.axes.get("op", ""))


def _fixed_constexprs(spec: KernelSpec) -> frozenset[str]:
    """The constexprs that a caller fixes: those taken from an enumerated axis as they are."""
    buckets = {axis.name for block in spec.blocks for axis in block.axes if isinstance(axis, BucketAxis)}

    def enumerated(name: str) -> bool:
        return name.startswith("$") and name[1:] not in buckets

    return frozenset(
        param.name
        for param in spec.params
        if isinstance(param, ConstexprParam)
        and (
            (isinstance(param.value, DTypeValue) and enumerated(param.value.name))
            or (isinstance(param.value, Expr) and enumerated(param.value.name))
        )
    )


def _missing(variants: list[Variant]) -> Iterator[str]:
    general = [v for v in variants if not any(_claim(arg) for arg in v.args)]
    if not general:
        narrowed = dict.fromkeys(
            claim
            for arg in variants[0].args
            if all(_claim(a) for v in variants for a in v.args if a.name == arg.name)
            if (claim := _claim(arg))
        )
        yield " with ".join(narrowed) if narrowed else "arguments that fit no claim"
        return
    extents: dict[str, list[int | None]] = {}
    for variant in variants:
        for bound in variant.bounds:
            extents.setdefault(bound.of, [])
            if bound.max not in extents[bound.of]:
                extents[bound.of].append(bound.max)
    points = product(*([*sorted(b for b in bounds if b is not None), None] for bounds in extents.values()))
    found = []
    for point in islice(points, _MAX_POINTS):
        request = dict(zip(extents, point, strict=True))
        if not any(_takes(variant, request) for variant in general):
            found.append(request)
    # A point below another uncovered one says nothing new.
    for request in found:
        if not any(other is not request and _below(request, other) for other in found):
            yield " and ".join(
                f"{of} over {_previous(extents[of])}" if value is None else f"{of} up to {value}"
                for of, value in request.items()
            )


def _previous(bounds: list[int | None]) -> int:
    return max(b for b in bounds if b is not None)


def _below(a: dict[str, int | None], b: dict[str, int | None]) -> bool:
    """Whether every extent of ``a`` is at most that of ``b``; None is beyond every bound."""
    return all(b[of] is None or (value is not None and value <= (b[of] or 0)) for of, value in a.items())


def _takes(variant: Variant, request: dict[str, int | None]) -> bool:
    return all((value := request[bound.of]) is not None and value <= bound.max for bound in variant.bounds)


def _claim(arg: object) -> str | None:
    """What an argument is claimed to be, as the input that no claim-free variant takes; None for no claim."""
    if isinstance(arg, PointerArg) and arg.align != 1:
        return f"{arg.name} at an address that is no multiple of {arg.align}"
    if isinstance(arg, ScalarArg) and arg.claim != "any":
        return f"{arg.name} other than {'1' if arg.claim == '1' else 'multiples of 16'}"
    return None
