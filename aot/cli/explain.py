"""``aot explain``: the loader's own selection, on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from aot.build.filters import spell, spell_axes
from aot.cli import output
from aot.dtypes import parse_dtype
from aot.errors import UsageError, nearest
from aot.loader.packing import Number
from aot.loader.select import PointerValue, Request, Selection, select
from aot.manifest import Const, ConstexprArg, DTypeConst, Entry, Kernel, PointerArg, ScalarArg, Variant
from aot.reader import BundleReader
from aot.target import Target

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


@click.command()
@click.argument("bundle")
@click.argument("kernel")
@click.option("--target", required=True, metavar="T", help="The device's capability, such as sm_90a or 9.0.")
@click.argument("call", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(bundle: str, kernel: str, target: str, call: Sequence[str], as_json: bool) -> int:
    """Show which variant of KERNEL in BUNDLE a call would get, and why not the others.

    KEY is a parameter, an axis or a compile option. A tensor's VALUE is its dtype, with :1
    for an address that is no multiple of 16 (x_ptr=float32:1). What is not given is taken
    to fit. Exits with 1 where no variant serves the call.

    Example: aot explain dist/reductions reduce_rows --target sm_90 OP=sum x_ptr=float16 n_rows=64 n_cols=1000
    """
    device = Target.parse(target)
    with BundleReader(bundle) as reader:
        found = reader.kernels.get(kernel)
        if found is None:
            raise UsageError(
                f"{bundle}: found no kernel {kernel!r}, wanted one of {', '.join(reader.kernels)}"
                + nearest(kernel, reader.kernels)
            )
        entries = [entry for ref in found.tables for entry in reader.table(ref)]
    request, axes = _read_call(found, entries, device, call)
    selection = select(request, [entry for entry in entries if _fits(entry.variant, axes)])
    if as_json:
        output.print_json(_as_json(selection))
    else:
        for decision in selection.decisions:
            if decision.variant is not None:
                verdict = f"no: {decision.fault.reason}" if decision.fault else "chosen"
                click.echo(f"{describe(decision.variant)}: {verdict}")
        if not selection.decisions:
            click.echo("found no variant with these axis values")
        if selection.entry is not None:
            click.echo()
            _show(selection.entry)
    return 0 if selection.entry is not None else 1


def _read_call(
    kernel: Kernel, entries: Sequence[Entry], device: Target, call: Sequence[str]
) -> tuple[Request, dict[str, str]]:
    args: dict[str, PointerValue | Number] = {}
    constexprs: dict[str, Const] = {}
    options: dict[str, bool | int | None] = {}
    axes: dict[str, str] = {}
    given: dict[str, str] = {}
    kinds = {param.name: param.kind for param in kernel.params}
    dtypes = {
        arg.name
        for entry in entries
        for arg in entry.variant.args
        if isinstance(arg, ConstexprArg) and isinstance(arg.value, DTypeConst)
    }
    known_axes = {name: None for entry in entries for name in entry.variant.axes}
    for item in call:
        key, separator, text = item.partition("=")
        if not separator or not text:
            raise UsageError(f"found {item!r}, wanted KEY=VALUE, such as n_cols=1000")
        if key in given:
            raise UsageError(f"{key}: found {text!r} after {given[key]!r}, wanted one value")
        given[key] = text
        kind = kinds.get(key)
        if kind == "pointer":
            args[key] = _pointer(key, text)
        elif kind == "scalar":
            args[key] = _number(key, text)
        elif kind == "constexpr":
            constexprs[key] = DTypeConst(parse_dtype(text).name) if key in dtypes else _const(text)
        elif key in _OPTIONS:
            options[key] = _option(key, text)
        elif key in known_axes:
            values = {spell(entry.variant.axes[key]): None for entry in entries if key in entry.variant.axes}
            if text not in values:
                raise UsageError(
                    f"{key}: found {_shown(text)}, wanted one of {', '.join(values)}" + nearest(text, values)
                )
            axes[key] = text
        else:
            valid = [*kinds, *known_axes, *_OPTIONS]
            raise UsageError(
                f"found {key!r}, wanted one of {', '.join(dict.fromkeys(valid))}" + nearest(key, valid)
            )
    for param in kernel.params:
        if param.kind == "constexpr" and param.has_default:
            constexprs.setdefault(param.name, param.default)
    request = Request(
        kernel=kernel.name,
        args=args,
        constexprs=constexprs,
        options=options,
        capability=device.capability,
        max_shared=device.max_shared,
    )
    return request, axes


def _pointer(name: str, text: str) -> PointerValue:
    dtype, separator, align = text.partition(":")
    if separator and align not in ("1", "16"):
        raise UsageError(f"{name}: found alignment {align!r}, wanted 1 or 16, such as {name}={dtype}:1")
    return PointerValue(dtype=parse_dtype(dtype).name, aligned=align != "1")


def _number(name: str, text: str) -> Number:
    value = _const(text)
    if isinstance(value, (int, float)):
        return value
    raise UsageError(f"{name}: found {_shown(text)}, wanted a number")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _option(name: str, text: str) -> int | None:
    value = _const(text)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise UsageError(f"{name}: found {_shown(text)}, wanted an integer, or null for none")


def _const(text: str) -> Const:
    """A value as JSON writes it; any other word is a string."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float, str)) or value is None else text


def _fits(variant: Variant, axes: Mapping[str, str]) -> bool:
    return all(name in variant.axes and spell(variant.axes[name]) == text for name, text in axes.items())


def describe(variant: Variant) -> str:
    """A variant in one line: its axes, then what it claims of its arguments."""
    words = [variant.target, spell_axes(variant.axes)]
    words += [f"{name}%{claim}" for name, claim in claims(variant).items()]
    return " ".join(words)


def claims(variant: Variant) -> dict[str, str]:
    """What a variant claims: parameters whose address or value must be a multiple of 16, or 1."""
    found = {}
    for arg in variant.args:
        if isinstance(arg, PointerArg) and arg.align != 1:
            found[arg.name] = str(arg.align)
        elif isinstance(arg, ScalarArg) and arg.claim != "any":
            found[arg.name] = arg.claim
    return found


def _constexprs(variant: Variant) -> dict[str, Any]:
    return {
        arg.name: arg.value.dtype if isinstance(arg.value, DTypeConst) else arg.value
        for arg in variant.args
        if isinstance(arg, ConstexprArg)
    }


def _show(entry: Entry) -> None:
    variant, binary = entry.variant, entry.binary
    shown = {
        "variant": describe(variant),
        "constexprs": ", ".join(f"{name}={spell(value)}" for name, value in _constexprs(variant).items()),
        "parameters": ", ".join(f"{arg.name}: {arg.type}" for arg in variant.launch_args),
        "warps": variant.options.num_warps,
        "registers": binary.registers,
        "shared": f"{binary.shared} bytes",
        "cubin": f"{binary.cubin.sha256[:16]}, {binary.cubin.raw_size} bytes",
    }
    for name, value in shown.items():
        click.echo(f"{name:<11} {value}")


def _as_json(selection: Selection) -> dict[str, Any]:
    return {
        "chosen": None
        if selection.entry is None
        else {
            "kernel": selection.entry.variant.kernel,
            "target": selection.entry.variant.target,
            "axes": dict(selection.entry.variant.axes),
            "claims": claims(selection.entry.variant),
            "constexprs": _constexprs(selection.entry.variant),
            "num_warps": selection.entry.variant.options.num_warps,
            "sha256": selection.entry.binary.cubin.sha256,
        },
        "decisions": [
            {
                "target": decision.target,
                "axes": dict(decision.variant.axes),
                "claims": claims(decision.variant),
                "reason": decision.fault.reason if decision.fault else None,
            }
            for decision in selection.decisions
            if decision.variant is not None
        ],
    }
