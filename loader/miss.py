"""The message of a miss: what was called, what there was and why not, and the YAML that would add it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from aot.dtypes import DTYPES
from aot.errors import KernelMiss, nearest
from aot.loader.packing import Number
from aot.loader.select import (
    Decision,
    Fault,
    PointerValue,
    Request,
    Selection,
    faults,
    show_const,
)
from aot.manifest import Const, DTypeConst, Entry, Kernel, PointerArg, ScalarArg, Variant
from aot.reader import BundleReader
from aot.target import plain_target

_MOST_REASONS = 20

# Strings that YAML reads as themselves, and nobody as a bool, null or number.
_WORD = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n|any)$)[a-z_][a-z0-9_]*", re.IGNORECASE)

# How far a fault is from what a caller would call the same kernel: the suggestion starts from the
# variant with the least of it.
_DISTANCE = {"target": 100, "dtype": 100, "type": 10, "constexpr": 10}


def kernel_miss(
    reader: BundleReader, kernel: Kernel, request: Request, selection: Selection, device: str
) -> KernelMiss:
    """Return the error for a request that no variant serves."""
    reasons = tuple(_grouped(selection.decisions))
    if all(d.fault is not None and d.fault.kind == "target" for d in selection.decisions):
        wrong = _wrong_gpu(reader, kernel, request, device)
        message = "\n".join([wrong, *_failed_builds(reader, kernel)])
    else:
        shown = reasons[:_MOST_REASONS]
        if len(reasons) > len(shown):
            shown += (f"… and {len(reasons) - len(shown)} other reasons",)
        total = sum(d.count for d in selection.decisions)
        message = "\n".join(
            [
                f"kernel {kernel.name!r} has no variant for the call "
                f"({describe(kernel, request)}) on {device}",
                f"{reader.path} has {total} of this kernel:",
                *(f"  {line}" for line in shown),
                *_failed_builds(reader, kernel),
                "to add it, write this into the kernel's spec and build again:",
                *(f"  {line}" for line in suggestion(reader, kernel, request)),
            ]
        )
    return KernelMiss(message, kernel=kernel.name, reasons=reasons, kind=_kind(selection))


def unknown_kernel(name: str, readers: Sequence[BundleReader]) -> KernelMiss:
    """Return the error for a kernel that none of the bundles has."""
    found = tuple(f"{reader.path} has {', '.join(reader.kernels)}" for reader in readers)
    near = nearest(name, [known for reader in readers for known in reader.kernels])
    message = (
        f"no bundle has kernel {name!r}: {'; '.join(found)}{near}; build the spec that has it, "
        "and put that bundle on AOT_BUNDLE_PATH"
    )
    return KernelMiss(message, kernel=name, reasons=found, kind="kernel")


def merged(name: str, misses: Sequence[KernelMiss]) -> KernelMiss:
    """Return the error for a call that several bundles were asked to serve: what each of them said."""
    if len(misses) == 1:
        return misses[0]
    kinds = [miss.kind for miss in misses if miss.kind != "target"]
    lines = [f"kernel {name!r}: none of {len(misses)} bundles serves the call:", *map(str, misses)]
    return KernelMiss(
        "\n".join(lines),
        kernel=name,
        reasons=tuple(reason for miss in misses for reason in miss.reasons),
        kind=kinds[0] if kinds else "target",
    )


def _kind(selection: Selection) -> str:
    """What is wrong with the variant that comes nearest."""
    kinds = [d.fault.kind for d in selection.decisions if d.fault is not None]
    return min(kinds, key=lambda kind: _DISTANCE.get(kind, 1), default="variant")


def describe(kernel: Kernel, request: Request) -> str:
    """The call in words, its parameters in order."""
    words = []
    for param in kernel.params:
        value = request.args.get(param.name)
        if isinstance(value, PointerValue):
            unaligned = " not aligned to 16 bytes" if value.aligned is False else ""
            words.append(f"{param.name}: {value.dtype}{unaligned}")
        elif value is not None:
            words.append(f"{param.name} = {value!r}")
        elif param.name in request.constexprs:
            words.append(f"{param.name} = {show_const(request.constexprs[param.name])}")
    words += [f"{name} = {value}" for name, value in request.options.items()]
    return ", ".join(words)


def _grouped(decisions: Iterable[Decision]) -> Iterator[str]:
    """One line a reason and target, the commonest first, with how many variants it stands for."""
    counts: dict[tuple[str, str], int] = {}
    for decision in decisions:
        if decision.fault is not None:
            key = (decision.target, decision.fault.reason)
            counts[key] = counts.get(key, 0) + decision.count
    for (target, reason), count in sorted(counts.items(), key=lambda item: -item[1]):
        yield f"{count} of {target}: {reason}"


def _wrong_gpu(reader: BundleReader, kernel: Kernel, request: Request, device: str) -> str:
    built = ", ".join(sorted({table.target for table in kernel.tables})) or "no target"
    return (
        f"kernel {kernel.name!r} is not built for this GPU: found {device}, "
        f"{reader.path} has it for {built}; build it with: "
        f"aot build SPEC --target {plain_target(request.capability)} -o DIR"
    )


def _failed_builds(reader: BundleReader, kernel: Kernel) -> Iterator[str]:
    failed = [m for m in reader.manifest.missing if m.kernel == kernel.name]
    if failed:
        first = failed[0].error.splitlines()[0] if failed[0].error else "no message"
        yield f"{len(failed)} more failed to compile when the bundle was built; the first: {first}"


def suggestion(reader: BundleReader, kernel: Kernel, request: Request) -> list[str]:
    """The YAML that would have made the variant nearest to the request serve the request.

    It names only what has to change: axes with the values that they have and the one to add,
    parameters and launch options as they should be.
    """
    entries = [entry for table in kernel.tables for entry in reader.table(table)]
    closest = _nearest(entries, request)
    sections: dict[str, list[str]] = {"axes": [], "params": [], "launch": [], "targets": []}
    for fault in faults(closest, request):
        section, line = _mend(closest.variant, fault, request, entries)
        if line not in sections[section]:
            sections[section].append(line)
    lines = [f"kernel: {kernel.name}"]
    for section, found in sections.items():
        if found and section == "targets":
            lines.append(f"targets: [{', '.join(found)}]")
        elif found:
            lines += [f"{section}:", *(f"  {line}" for line in found)]
    return lines


def _nearest(entries: Sequence[Entry], request: Request) -> Entry:
    """The entry with the least against it; of equals the last, as tables put the more general behind."""

    def distance(entry: Entry) -> int:
        return sum(_DISTANCE.get(fault.kind, 1) for fault in faults(entry, request))

    return min(reversed(entries), key=distance)


def _mend(variant: Variant, fault: Fault, request: Request, entries: Sequence[Entry]) -> tuple[str, str]:
    """The section of the spec, and the line that takes a fault away."""
    arg = next((arg for arg in variant.args if arg.name == fault.name), None)
    if fault.kind == "target":
        return "targets", plain_target(request.capability)
    if fault.kind == "shared":
        return "launch", f"num_stages: {max(1, variant.options.num_stages - 1)}  # for less shared memory"
    if fault.kind == "option":
        return "launch", f"{fault.name}: {_yaml(request.options[fault.name])}"
    if fault.kind == "bound":
        return "axes", _buckets(variant, fault.name, entries)
    if isinstance(arg, PointerArg):
        return _mend_pointer(variant, arg, request.args[arg.name], entries)
    if isinstance(arg, ScalarArg):
        name = _scalar_name(arg.type)
        if fault.kind == "type":
            return "params", f"{arg.name}: {_wider(request.args[arg.name])}"
        return "params", f"{arg.name}: {{int: {_reference(variant, name)}, specialize: [{arg.claim}, any]}}"
    value = request.constexprs[fault.name]
    axis = next((name for name in variant.axes if name.lower() == fault.name.lower()), None)
    if axis is not None:
        return "axes", f"{axis}: [{', '.join([*_axis_values(axis, entries), _yaml(value)])}]"
    return "params", f"{fault.name}: {{constexpr: {_constexpr(value)}}}"


def _mend_pointer(
    variant: Variant, arg: PointerArg, found: PointerValue | Number, entries: Sequence[Entry]
) -> tuple[str, str]:
    wanted = found.dtype if isinstance(found, PointerValue) and found.dtype else arg.dtype
    axis = _axis_of(variant, arg.dtype)
    if wanted == arg.dtype:
        return "params", f"{arg.name}: {{pointer: {_reference(variant, arg.dtype)}, align: [16, 1]}}"
    if axis is None:
        return "params", f"{arg.name}: {{pointer: {wanted}, align: [16, 1]}}"
    return "axes", f"{axis}: [{', '.join(dict.fromkeys([*_axis_values(axis, entries), wanted]))}]"


def _buckets(variant: Variant, of: str, entries: Sequence[Entry]) -> str:
    """The bucket axis whose extent is ``of``, with no upper bound."""
    bound = next(b for b in variant.bounds if b.of == of)
    axis = next((name for name, value in variant.axes.items() if value == bound.max), "extent")
    bounds = {b.max for entry in entries for b in entry.variant.bounds if b.of == of}
    listed = ", ".join(map(str, sorted(bounds)))
    return f"{axis}: {{buckets: [{listed}, any]{'' if of == axis else f', of: {of}'}}}"


def _axis_values(axis: str, entries: Sequence[Entry]) -> list[str]:
    """The values that an axis has in the bundle, in their order there."""
    values = (entry.variant.axes[axis] for entry in entries if axis in entry.variant.axes)
    return list(dict.fromkeys(map(_yaml, values)))


def _axis_of(variant: Variant, value: str) -> str | None:
    return next((name for name, found in variant.axes.items() if found == value), None)


def _reference(variant: Variant, dtype: str) -> str:
    """A dtype as the spec has it: ``$axis`` where an axis sets it."""
    axis = _axis_of(variant, dtype)
    return dtype if axis is None else f"${axis}"


def _scalar_name(type_: str) -> str:
    return next(d.name for d in DTYPES.values() if d.scalar == type_)


def _wider(value: object) -> str:
    if isinstance(value, float):
        return "{float: float64}"
    if isinstance(value, int) and value >= 2**63:
        return "{int: uint64, specialize: [16, any]}"
    return "{int: int64, specialize: [16, any]}"


def _constexpr(value: Const) -> str:
    """A constexpr as a spec writes it; a bare word would be read as an expression there."""
    if isinstance(value, DTypeConst):
        return f"{{dtype: {value.dtype}}}"
    return f"{{text: {json.dumps(value)}}}" if isinstance(value, str) else _yaml(value)


def _yaml(value: Const) -> str:
    """A value of an axis or an option: JSON is YAML, and a plain word needs no quotes."""
    if isinstance(value, DTypeConst):
        return value.dtype
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return json.dumps(value)
