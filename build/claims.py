"""What the claims of a kernel say before any name is looked up, and whether they fit the function."""

from __future__ import annotations

from collections.abc import Iterator

from aot.build.drafts import (
    At,
    ConstexprDraft,
    DTypeRef,
    Item,
    ParamsDraft,
    PointerDraft,
    ScalarDraft,
    TableDraft,
    ValueDraft,
)
from aot.build.signature import Signature
from aot.build.yamlnodes import Faults
from aot.errors import nearest
from aot.expr import Expr


def items(draft: ValueDraft) -> Iterator[At[Item]]:
    """Yield a value's items: itself, or every result of a table."""
    if isinstance(draft, TableDraft):
        yield from (result for _, result in draft.rows)
        if draft.otherwise is not None:
            yield draft.otherwise
    else:
        yield draft


def axis_roles(params: ParamsDraft) -> dict[str, frozenset[str]]:
    """Return, for each ``$axis`` that gives a dtype, what the dtype is for: ``dtype``, ``int``, ``float``."""
    roles: dict[str, set[str]] = {}
    for _, param in params:
        match param:
            case PointerDraft():
                uses = [("dtype", param.dtype.value)]
            case ScalarDraft():
                uses = [(param.kind, param.type.value)]
            case ConstexprDraft():
                found = [item.value for item in items(param.value)]
                uses = [("dtype", item.name) for item in found if isinstance(item, DTypeRef)]
            case None:
                uses = []
        for role, name in uses:
            if name.startswith("$"):
                roles.setdefault(name[1:], set()).add(role)
    return {name: frozenset(found) for name, found in roles.items()}


def int_params(params: ParamsDraft) -> frozenset[str]:
    """Return the parameters that an extent may be made of: ints, and any that had a fault."""
    return frozenset(
        name.value
        for name, param in params
        if param is None
        or (isinstance(param, ScalarDraft) and param.kind == "int" and param.type.value != "bool")
    )


def check_claims(params: At[ParamsDraft], signature: Signature, faults: Faults) -> None:
    """Report where the claims differ from the function's parameters in name, order or constexpr."""
    names, function = signature.names, signature.function
    claimed = [name.value for name, _ in params.value]
    for name, param in params.value:
        if name.value not in names:
            faults.add(
                name.mark,
                f"found the parameter {name.value!r}, wanted one of {function}: "
                f"{', '.join(names) or 'it has none'}" + nearest(name.value, set(names) - set(claimed)),
            )
        elif isinstance(param, ConstexprDraft) and name.value not in signature.constexprs:
            faults.add(
                name.mark,
                f"found {name.value!r} claimed as a constexpr, wanted pointer, int or float: "
                f"{function} does not annotate it with tl.constexpr",
            )
        elif isinstance(param, (PointerDraft, ScalarDraft)) and name.value in signature.constexprs:
            faults.add(
                name.mark,
                f"found {name.value!r} claimed as no constexpr, wanted {{constexpr: …}}: "
                f"{function} annotates it with tl.constexpr",
            )
    missing = [name for name in names if name not in claimed]
    if missing:
        faults.add(
            params.mark,
            f"found no claim for {', '.join(missing)}, wanted every parameter of {function} once",
        )
    common = [name for name in names if name in claimed]
    order = [name for name, _ in params.value if name.value in common]
    for at, wanted in zip(order, common, strict=True):
        if at.value != wanted:
            faults.add(
                at.mark,
                f"found {at.value!r} where {function} has {wanted!r}, "
                f"wanted its parameters in order: {', '.join(names)}",
            )
            break


def check_loops(params: ParamsDraft, faults: Faults) -> None:
    """Report constexprs that are defined by each other."""
    uses = {
        name.value: {n for at in items(param.value) if isinstance(at.value, Expr) for n in at.value.names()}
        for name, param in params
        if isinstance(param, ConstexprDraft)
    }
    # What uses nothing that is left, or is used by nothing that is left, is in no loop.
    left = set(uses)
    while loose := {n for n in left if not uses[n] & left or not any(n in uses[other] for other in left)}:
        left -= loose
    marks = [name.mark for name, _ in params if name.value in left]
    if marks:
        names = ", ".join(name for name in uses if name in left)
        faults.add(marks[0], f"found {names} defined by each other, wanted no loop")
