"""Filters of a plan: ``KEY=VALUE[,VALUE]`` over axes, ``kernel`` and ``target``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aot.errors import UsageError, nearest
from aot.manifest import Const, encode

if TYPE_CHECKING:
    from aot.build.plan import PlannedKernel


def apply_filters(
    kernels: Sequence[PlannedKernel], filters: Mapping[str, Sequence[str]]
) -> tuple[PlannedKernel, ...]:
    """Keep the variants and refusals that fit every filter.

    Raises ``UsageError`` for a key or value that no variant has, and when nothing is left.
    """
    available: dict[str, set[str]] = {}
    for kernel in kernels:
        for variant in kernel.variants:
            for name, value in _facets(variant.variant.kernel, variant.variant.target, variant.variant.axes):
                available.setdefault(name, set()).add(value)
        for refused in kernel.refused:
            for name, value in _facets(refused.kernel, refused.target, refused.axes):
                available.setdefault(name, set()).add(value)
    for name, wanted in filters.items():
        if name not in available:
            raise UsageError(
                f"found filter {name!r}, wanted one of {', '.join(sorted(available))}"
                + nearest(name, available)
            )
        for value in wanted:
            if value not in available[name]:
                raise UsageError(
                    f"found {name}={value!r}, wanted one of {', '.join(sorted(available[name]))}"
                    + nearest(value, available[name])
                )

    def kept(name: str, target: str, axes: Mapping[str, Const]) -> bool:
        facets = dict(_facets(name, target, axes))
        return all(facets.get(key) in wanted for key, wanted in filters.items())

    result = []
    for k in kernels:
        variants = tuple(v for v in k.variants if kept(k.spec.kernel, v.variant.target, v.variant.axes))
        refused_ = tuple(r for r in k.refused if kept(k.spec.kernel, r.target, r.axes))
        if variants or refused_:
            result.append(replace(k, variants=variants, refused=refused_))
    if not result:
        raise UsageError("nothing is left to build: found no variant that fits every filter; loosen one")
    return tuple(result)


def _facets(kernel: str, target: str, axes: Mapping[str, Const]) -> Iterator[tuple[str, str]]:
    yield "kernel", kernel
    yield "target", target
    for name, value in axes.items():
        yield name, spell(value)


def spell_axes(axes: Mapping[str, Const]) -> str:
    """Axis values in one line, as ``KEY=VALUE`` words."""
    return " ".join(f"{name}={spell(value)}" for name, value in axes.items())


def spell(value: Const) -> str:
    """A value as people write it in YAML and in ``KEY=VALUE``: an unbounded bucket is ``any``."""
    if value is None:
        return "any"
    return value if isinstance(value, str) else encode(value).decode()
