"""``include`` and ``exclude``: drafts to rules, each value looked up in its axis."""

from __future__ import annotations

from aot.build.axes import Axes
from aot.build.drafts import RuleDraft
from aot.build.yamlnodes import Faults
from aot.spec import Const, Rule


def include_rule(draft: RuleDraft, axes: Axes, faults: Faults) -> Rule | None:
    """Convert an ``include`` rule, one value for every axis of a block; they become values of these axes."""
    given = {name.value for name, _ in draft.match}
    if axes.whole and not any(given == set(block.names) for block in axes.blocks):
        known = [name for name, _ in draft.match if axes.check_name(name.value, name, everywhere=False)]
        if len(known) == len(draft.match):
            wanted = " or ".join(", ".join(block.names) or "no axis" for block in axes.blocks)
            faults.add(
                draft.mark,
                f"found {', '.join(n.value for n in known)}, wanted every axis of a block: {wanted}",
            )
        return None
    match: list[tuple[str, tuple[Const, ...]]] = []
    for name, nodes in draft.match:
        at = axes.key(name.value, nodes[0], known=False) if axes.has(name.value) else None
        if at is not None:
            axes.add(name.value, at.value)
            match.append((name.value, (at.value,)))
    return Rule(match=tuple(match), why=draft.why) if len(match) == len(draft.match) else None


def exclude_rule(draft: RuleDraft, axes: Axes, faults: Faults) -> Rule:
    """Convert an ``exclude`` rule, whose values must be values of their axes, or targets."""
    match: list[tuple[str, tuple[Const, ...]]] = []
    for name, nodes in draft.match:
        if not axes.check_name(name.value, name, target=True, everywhere=False):
            continue
        read = [axes.key(name.value, node) for node in nodes]
        values = tuple(at.value for at in read if at is not None)
        match.append((name.value, values))
        if len({(type(value), value) for value in values}) != len(values):
            faults.add(name.mark, f"found a value of {name.value!r} a second time, wanted each once")
    return Rule(match=tuple(match), why=draft.why)
