"""Parameters and options that a spec fixes and a recorded call wants otherwise: give each an axis of its own.

Such an axis starts with what the spec has, so that this step alone changes no variant; which
values it gets besides is decided with all other axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from aot.build.evaluate import NoValue, combinations, constexprs_of, evaluate
from aot.build.recordneeds import claim_holds, fits, launch, scalar_types
from aot.build.recordplaces import agreed, asked
from aot.build.recordtables import GENERAL, listed_values
from aot.build.specedit import SpecText, result_text
from aot.dtypes import DTYPES
from aot.expr import Expr
from aot.manifest import Const, DTypeConst, same_const
from aot.recordfile import PointerSeen, Record
from aot.spec import (
    BucketAxis,
    ConstexprParam,
    DTypeValue,
    Fixed,
    KernelSpec,
    PointerParam,
    ScalarParam,
    Table,
    Value,
)

_RESERVED = ("target", "why", "by", "else")
CLAIMS_AXIS = "claims"
STRICT = "strict"


def free_slots(spec: KernelSpec, records: Sequence[Record], text: SpecText, exact: bool) -> None:
    """Change ``text`` so that every slot that ``records`` want otherwise follows an axis.

    What no axis can express stays as it is: the records then find no place. Raises ``EditError``.
    """
    for param in spec.params:
        if isinstance(param, PointerParam):
            _free_pointer(spec, param, records, text)
        elif isinstance(param, ScalarParam):
            _free_scalar(spec, param, records, text)
        else:
            _free_constexpr(spec, param, records, text)
    for name, value in launch(spec):
        _free_option(spec, name, value, records, text)
    _free_claims(spec, records, text, exact)


def axis_name(spec: KernelSpec, wanted: str) -> str:
    """A name for a new axis that no axis has."""
    taken = {name for block in spec.blocks for name in block.names}
    while wanted in taken or wanted in _RESERVED:
        wanted += "_"
    return wanted


def _free_pointer(spec: KernelSpec, param: PointerParam, records: Sequence[Record], text: SpecText) -> None:
    found = [record.values.get(param.name) for record in records]
    other = any(isinstance(a, PointerSeen) and a.dtype not in (None, param.dtype) for a in found)
    if _torn(spec, param.name, param.dtype, records) or (other and not param.dtype.startswith("$")):
        name = axis_name(spec, f"{param.name}_dtype")
        text.set_param(spec.kernel, param.name, "pointer", f"${name}")
        text.new_axis(spec.kernel, name, param.dtype)


def _free_scalar(spec: KernelSpec, param: ScalarParam, records: Sequence[Record], text: SpecText) -> None:
    args = [a for record in records if (a := record.values.get(param.name)) is not None]
    key, kinds = text.kind_of(spec.kernel, param.name), {"int": ("int", "uint"), "float": ("float",)}
    other = not param.type.startswith("$") and any(
        fits(param.type, arg) and any(DTYPES[t].kind in kinds[key] for t in scalar_types(arg)) for arg in args
    )
    if other or _torn(spec, param.name, param.type, records):
        name = axis_name(spec, f"{param.name}_type")
        text.set_param(spec.kernel, param.name, key, f"${name}")
        text.new_axis(spec.kernel, name, param.type)


def _torn(spec: KernelSpec, slot: str, reference: str, records: Sequence[Record]) -> bool:
    """Whether a slot follows an axis of which a call wants two values at once, this slot's the later one."""
    if not reference.startswith("$") or any(
        isinstance(axis, BucketAxis) and axis.name == reference[1:] for b in spec.blocks for axis in b.axes
    ):
        return False
    for record in records:
        found = None
        for name, values in asked(spec, reference, record):
            kept = agreed(found, values)
            if values and not kept:
                if name == slot:
                    return True
                continue
            found = kept
    return False


def _free_constexpr(
    spec: KernelSpec, param: ConstexprParam, records: Sequence[Record], text: SpecText
) -> None:
    name, value = param.name, param.value
    axis = axis_name(spec, name)
    if _follows_axis(value):
        reference = value.name if isinstance(value, DTypeValue) else str(value)
        if not isinstance(value, Table) and _torn(spec, name, reference, records):
            new = f"{{dtype: ${axis}}}" if isinstance(value, DTypeValue) else f"${axis}"
            text.set_param(spec.kernel, name, "constexpr", new)
            text.new_axis(spec.kernel, axis, reference)
        return
    taken = _taken(spec, value)
    given = [record.consts[name] for record in records if name in record.consts]
    wanted = [v for v in given if not any(same_const(v, t) for t in taken) and not _is_endless(v)]
    if not wanted:
        return
    if isinstance(value, DTypeValue) and all(isinstance(v, DTypeConst) for v in wanted):
        text.set_param(spec.kernel, name, "constexpr", f"{{dtype: ${axis}}}")
        text.new_axis(spec.kernel, axis, value.name)
    elif isinstance(value, Fixed) and all(map(_is_axis_value, [value.value, *wanted])):
        text.set_param(spec.kernel, name, "constexpr", f"${axis}")
        text.new_axis(spec.kernel, axis, value.value)
    else:
        # null, a dtype or an expression is no value of an axis, but may be what a table gives for one.
        old = text.param_text(spec.kernel, name, "constexpr")
        text.set_param(spec.kernel, name, "constexpr", f"{{by: {axis}, spec: {old}}}")
        text.new_axis(spec.kernel, axis, "spec")


def _free_option(
    spec: KernelSpec, name: str, value: Value, records: Sequence[Record], text: SpecText
) -> None:
    wanted = [r.options[name] for r in records if name in r.options]
    plain = [v for v in wanted if isinstance(v, int) and not isinstance(v, bool)]
    # No axis can say whether there is a limit of registers, and fp_fusion follows none.
    unlimited = isinstance(value, Fixed) and value.value is None
    if name == "fp_fusion" or unlimited or not isinstance(value, (Fixed, Expr)) or _follows_axis(value):
        return
    taken = _taken(spec, value)
    if all(v in taken for v in plain):
        return
    axis = axis_name(spec, name)
    if isinstance(value, Fixed):
        text.new_axis(spec.kernel, axis, value.value)
        text.set_option(spec.kernel, name, f"${axis}")
    else:
        old = text.option_text(spec.kernel, name) or result_text(value)
        text.set_option(spec.kernel, name, f"{{by: {axis}, spec: {old}}}")
        text.new_axis(spec.kernel, axis, "spec")


def _free_claims(spec: KernelSpec, records: Sequence[Record], text: SpecText, exact: bool) -> None:
    """Let the parameters whose claims are too strict for a call be claimed less.

    One of them gets a second claim where that costs little; several, or a large spec, get an
    axis that turns all of them from strict to none, so that they do not multiply.
    """
    strict = list(_too_strict(spec, records))
    single = [(name, key, claims) for name, key, claims in strict if len(claims) == 1]
    for name, key, claims in strict:
        if len(claims) > 1:
            text.set_param(spec.kernel, name, key, f"[{', '.join([*claims, 'any'])}]")
    known = {name for block in spec.blocks for name in block.names}
    size = sum(1 for _ in combinations(spec))
    if len(single) == 1 and CLAIMS_AXIS not in known and not exact and size <= 4 * len(records):
        name, key, claims = single[0]
        text.set_param(spec.kernel, name, key, f"[{claims[0]}, {_general(key)}]")
        return
    if single and CLAIMS_AXIS not in known:
        text.new_axis(spec.kernel, CLAIMS_AXIS, STRICT)
    rules = any(
        name == CLAIMS_AXIS and GENERAL in values for rule in spec.include for name, values in rule.match
    )
    general = rules or GENERAL in listed_values(spec, CLAIMS_AXIS)
    for name, key, claims in single:
        rows = f"{STRICT}: {claims[0]}" + (f", {GENERAL}: {_general(key)}" if general else "")
        text.set_param(spec.kernel, name, key, f"{{by: {CLAIMS_AXIS}, {rows}}}")


def _general(key: str) -> str:
    return "1" if key == "align" else "any"


def _too_strict(spec: KernelSpec, records: Sequence[Record]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for param in spec.params:
        args = [a for record in records if (a := record.values.get(param.name)) is not None]
        if isinstance(param, PointerParam) and not isinstance(param.align, Table):
            if 1 not in param.align and any(isinstance(a, PointerSeen) and a.align == 1 for a in args):
                yield param.name, "align", tuple(map(str, param.align))
        elif (
            isinstance(param, ScalarParam)
            and not isinstance(param.specialize, Table)
            and any(not any(claim_holds(c, a) for c in param.specialize) for a in args)
        ):
            yield param.name, "specialize", tuple(param.specialize)


def _follows_axis(value: Value | None) -> bool:
    """Whether new values of an axis can change what a slot gives: no further axis is needed then."""
    if isinstance(value, Table):
        return True
    if isinstance(value, DTypeValue):
        return value.name.startswith("$")
    return isinstance(value, Expr) and value.op == "name" and value.name.startswith("$")


def _is_axis_value(value: Const) -> bool:
    return value is not None and not isinstance(value, DTypeConst) and not str(value).startswith("$")


def _is_endless(value: Const) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _taken(spec: KernelSpec, value: Value) -> list[Const]:
    """The values that a constexpr or option has in the combinations of a spec."""
    if isinstance(value, Fixed):
        return [value.value]
    if isinstance(value, DTypeValue):
        return [DTypeConst(value.name)]
    found: list[Const] = []
    for target in map(str, spec.targets):
        for combination in combinations(spec):
            try:
                constexprs = constexprs_of(spec, combination.values, target)
                result = evaluate(value, combination.values, constexprs, target)
            except NoValue:
                continue
            if not any(same_const(result, known) for known in found):
                found.append(result)
    return found
