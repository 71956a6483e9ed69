"""Which cubins a preload means: ops, kernels, dtypes and axes, as a user names them, to entries.

A name that the bundle does not have is an error, with the nearest that it has: a service learns of a
misspelt filter when it starts, and not by a load in a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from aot.dtypes import parse_dtype
from aot.errors import UsageError, nearest
from aot.loader.arguments import dtype_name
from aot.loader.driver import Device
from aot.manifest import Const, ConstexprArg, DTypeConst, Entry, Kernel, TableRef, same_const
from aot.target import Target

if TYPE_CHECKING:
    from aot.loader.bundle import Bundle

Names = str | Iterable[str]
Values = Const | Iterable[Const]


class Choice(Struct, frozen=True, kw_only=True):
    """What to preload, as names of the bundle. ``kernels``: with each the ``OP`` codes that are
    wanted of it (None: all). ``dtypes``: of a kernel's first pointer (None: all). ``axes``: values
    that a variant's axes may have."""

    kernels: Mapping[str, frozenset[str] | None]
    dtypes: frozenset[str] | None
    axes: Mapping[str, tuple[Const, ...]]


def read_choice(
    bundle: Bundle, ops: Names | None, kernels: Names | None, dtypes: Any, axes: Mapping[str, Values] | None
) -> Choice:
    """Read the filter. Raises ``UsageError`` for a name that the bundle does not have."""
    names: dict[str, frozenset[str] | None] = {}
    if ops is None and kernels is None:
        names = dict.fromkeys(bundle.kernels)
    for op in _several(ops):
        for name, codes in _kernels_of_op(bundle, op).items():
            names[name] = (names.get(name) or frozenset()) | codes
    for name in _several(kernels):
        names[bundle.kernel(name).name] = None
    infos = [bundle.reader.kernels[name] for name in names]
    return Choice(kernels=names, dtypes=_dtypes(bundle, infos, dtypes), axes=_axes(bundle, infos, axes))


def _kernels_of_op(bundle: Bundle, op: str) -> dict[str, frozenset[str]]:
    from aot.loader.ops.table import PUBLIC, kernels_of

    if op not in PUBLIC:
        raise UsageError(f"found op {op!r}, wanted one of {', '.join(PUBLIC)}" + nearest(op, PUBLIC))
    known = kernels_of(op)
    found = {name: codes for name, codes in known.items() if name in bundle.reader.kernels}
    if not found:
        raise UsageError(
            f"{bundle.reader.path}: found no kernel of op {op!r}, wanted one of {', '.join(known)}; it has "
            f"{', '.join(bundle.kernels)}"
        )
    return found


def _dtypes(bundle: Bundle, kernels: Iterable[Kernel], dtypes: Any) -> frozenset[str] | None:
    if dtypes is None:
        return None
    present = {table.types[0] for kernel in kernels for table in kernel.tables if table.types}
    found = set()
    for dtype in _several(dtypes):
        name = parse_dtype(dtype).name if isinstance(dtype, str) else dtype_name(dtype)
        if name is None:
            raise UsageError(f"found dtype {dtype!r}, wanted torch's name of one, or a torch.dtype")
        if name not in present:
            raise UsageError(
                f"{bundle.reader.path}: found dtype {name}, which is the first pointer's in none of these "
                f"kernels; wanted one of {', '.join(sorted(present))}"
            )
        found.add(name)
    return frozenset(found)


def _axes(
    bundle: Bundle, kernels: Iterable[Kernel], axes: Mapping[str, Values] | None
) -> dict[str, tuple[Const, ...]]:
    if not axes:
        return {}
    present = _axis_values(bundle, kernels)
    found: dict[str, tuple[Const, ...]] = {}
    for name, given in axes.items():
        if name not in present:
            raise UsageError(
                f"{bundle.reader.path}: found axis {name!r}, wanted one of {', '.join(present) or 'none'}"
                + nearest(name, present)
            )
        found[name] = tuple(_several(given)) or (None,)
        for value in found[name]:
            # None means the variants that lack the axis, as the last bucket of extents does.
            if value is not None and not any(same_const(value, known) for known in present[name]):
                raise UsageError(
                    f"{bundle.reader.path}: found {value!r} for axis {name}, wanted one of "
                    f"{', '.join(map(repr, present[name]))}"
                )
    return found


def _axis_values(bundle: Bundle, kernels: Iterable[Kernel]) -> dict[str, list[Const]]:
    """Every axis of the kernels' variants, with its values in their order."""
    found: dict[str, dict[object, Const]] = {}
    for kernel in kernels:
        for table in kernel.tables:
            for entry in bundle.reader.table(table):
                for name, value in entry.variant.axes.items():
                    plain = _plain(value)
                    found.setdefault(name, {}).setdefault((type(plain), plain), plain)
    return {name: list(values.values()) for name, values in found.items()}


def _several(given: Any) -> Iterator[Any]:
    """What was given, one by one; a string is one, and None is none at all."""
    if isinstance(given, str) or not isinstance(given, Iterable | None):
        yield given
    elif given is not None:
        yield from given


def _plain(value: Const) -> Const:
    """A dtype by its name, as a filter gives it."""
    return value.dtype if isinstance(value, DTypeConst) else value


def entries_for(bundle: Bundle, choice: Choice, device: Device) -> dict[tuple[str, str], Entry]:
    """What calls on ``device`` can select, by (sha256, symbol): of the targets that it runs, the best
    that has a table."""
    found: dict[tuple[str, str], Entry] = {}
    for name, codes in choice.kernels.items():
        best: dict[tuple[str, ...], TableRef] = {}
        for table in sorted(bundle.reader.kernels[name].tables, key=_preference):
            runs = Target.parse(table.target).reject_reason(device.capability) is None
            if runs and (choice.dtypes is None or (table.types[:1] and table.types[0] in choice.dtypes)):
                best[table.types] = table
        for table in best.values():
            for entry in bundle.reader.table(table):
                if entry.binary.shared <= device.max_shared and _is_wanted(entry, codes, choice.axes):
                    found.setdefault((entry.binary.cubin.sha256, entry.binary.symbol), entry)
    return found


def _preference(table: TableRef) -> tuple[int, bool]:
    return Target.parse(table.target).preference()


def _is_wanted(entry: Entry, codes: frozenset[str] | None, axes: Mapping[str, tuple[Const, ...]]) -> bool:
    variant = entry.variant
    if codes is not None:
        ops = [arg.value for arg in variant.args if type(arg) is ConstexprArg and arg.name == "OP"]
        if not codes.issuperset(ops):
            return False
    return all(
        any(same_const(_plain(variant.axes.get(name)), value) for value in values)
        for name, values in axes.items()
    )


def nothing_chosen(bundle: Bundle, choice: Choice, devices: Iterable[Device]) -> UsageError:
    shown = ", ".join(map(str, devices))
    targets = sorted({t.target for name in choice.kernels for t in bundle.reader.kernels[name].tables})
    return UsageError(
        f"{bundle.reader.path}: found nothing to preload for {shown}: no variant of "
        f"{', '.join(choice.kernels)}, built for {', '.join(targets)}, fits the device and the filter; "
        "leave out dtypes or axes, or build for the device"
    )
