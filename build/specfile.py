"""YAML files to ``KernelSpec``s, with every fault of every file in one report."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from aot.build.axes import Axes
from aot.build.claims import axis_roles, check_claims, check_loops, int_params
from aot.build.drafts import At, ConstexprDraft, FileDraft, KernelDraft, LaunchDraft
from aot.build.language import SPEC
from aot.build.leaves import IDENTIFIER
from aot.build.rules import exclude_rule, include_rule
from aot.build.signature import Signature, read_signature
from aot.build.specvalues import Scope
from aot.build.yamlnodes import Faults, Mark, read_tree, shown
from aot.errors import SpecError, UsageError, nearest
from aot.spec import BucketAxis, ConstexprParam, KernelSpec, Param, PointerParam, Source, Table

# Combinations of axes, claims and targets that one kernel may ask for.
MAX_VARIANTS = 1_000_000

_SUFFIXES = (".yaml", ".yml")
_SOURCE = re.compile(rf"(.+):({IDENTIFIER})", re.ASCII)
_MODULE = re.compile(rf"{IDENTIFIER}(?:\.{IDENTIFIER})*", re.ASCII)
_DEFAULT_LAUNCH = LaunchDraft(None, None, None, None, None, True)


def load_specs(
    paths: Sequence[str | os.PathLike[str]], texts: Mapping[str, str] | None = None
) -> tuple[KernelSpec, ...]:
    """Read spec files, and every spec file below a folder, in order of path.

    ``texts`` are read in the place of the files that they are keyed by.

    A file that is named twice is read once. Raises ``SpecError`` with all faults of all
    files, each as ``file:line:column: found …, wanted …``; ``file`` is the path as given.
    """
    problems: list[str] = []
    specs: list[KernelSpec] = []
    named: dict[str, str] = {}
    general: list[tuple[str, At[str]]] = []
    for file in _files(paths, problems):
        faults = Faults(file)
        text = None if texts is None else texts.get(file)
        draft = _read(file, faults, problems) if text is None else _parse(text.encode(), faults)
        for kernel in _merged(draft) if draft else ():
            if kernel.kernel is not None:
                name, mark = kernel.kernel.value, kernel.kernel.mark
                if name in named:
                    faults.add(
                        mark,
                        f"found the kernel {name!r} a second time, wanted it once (first at {named[name]})",
                    )
                named.setdefault(name, f"{file}:{mark.line}:{mark.column}")
            if kernel.general is not None:
                general.append((file, kernel.general))
            spec = _kernel(kernel, file, faults)
            if spec is not None:
                specs.append(spec)
        problems += faults.lines()
    problems += [
        f"{file}:{at.mark.line}:{at.mark.column}: found the general kernel {at.value!r}, "
        f"wanted one of {', '.join(named)}" + nearest(at.value, named)
        for file, at in general
        if at.value not in named
    ]
    if not paths:
        problems.append("found no spec, wanted a .yaml file or a folder of them")
    if problems:
        raise SpecError(problems)
    return tuple(specs)


def spec_paths(paths: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """The spec files that ``paths`` name, as :func:`load_specs` reads them. Raises ``SpecError``."""
    problems: list[str] = []
    found = tuple(_files(paths, problems))
    if problems:
        raise SpecError(problems)
    return found


def spec_sha256(path: str | os.PathLike[str]) -> str:
    """Return the sha256 (hex) of a spec file's bytes. Raises ``UsageError`` where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise UsageError(_unreadable(os.fspath(path), error)) from None


def _unreadable(path: str, error: OSError) -> str:
    return f"{path}: found {(error.strerror or str(error)).lower()}, wanted a spec file"


def _files(paths: Sequence[str | os.PathLike[str]], problems: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for path in [os.fspath(path) for path in paths]:
        found = [path]
        if os.path.isdir(path):
            found = sorted(
                os.path.join(folder, name)
                for folder, _, names in os.walk(path)
                for name in names
                if name.endswith(_SUFFIXES)
            )
            if not found:
                problems.append(f"{path}: found a folder with no .yaml file, wanted at least one")
        elif not path.endswith(_SUFFIXES):
            what = "a file" if os.path.exists(path) else "nothing"
            problems.append(f"{path}: found {what}, wanted a .yaml file or a folder of them")
            continue
        for file in found:
            if (real := os.path.realpath(file)) not in seen:
                seen.add(real)
                yield file


def _read(file: str, faults: Faults, problems: list[str]) -> FileDraft | None:
    if os.path.exists(file) and not os.path.isfile(file):
        # Reading a pipe or a device may never end.
        problems.append(f"{file}: found no regular file, wanted a spec file")
        return None
    try:
        with open(file, "rb") as stream:
            data = stream.read()
    except OSError as error:
        problems.append(_unreadable(file, error))
        return None
    return _parse(data, faults)


def _parse(data: bytes, faults: Faults) -> FileDraft | None:
    tree = read_tree(data, faults)
    return None if tree is None else SPEC.read(tree, faults)


def _merged(draft: FileDraft) -> Iterator[KernelDraft]:
    """Yield the file's kernels, each with what the file shares."""
    for kernel in draft.kernels or ():
        if kernel is None:
            continue
        bad = kernel.bad | (draft.bad & {"axes", "targets", "exclude", "include"})
        own = kernel.axes or ((),)
        yield replace(
            kernel,
            bad=bad,
            axes=tuple(shared + more for shared in draft.axes or ((),) for more in own),
            targets=kernel.targets or draft.targets,
            exclude=(draft.exclude or ()) + (kernel.exclude or ()),
            include=(draft.include or ()) + (kernel.include or ()),
        )


def _source(at: At[str], file: str, faults: Faults) -> tuple[Source, Signature] | None:
    written = at.value
    match = _SOURCE.fullmatch(written)
    place = match.group(1) if match else ""
    is_path = place.endswith(".py") and not os.path.isabs(place) and "\\" not in place
    if not match or not (is_path or _MODULE.fullmatch(place)) or (is_path and place == ".py"):
        faults.add(
            at.mark,
            f"found the source {shown(written)}, wanted kernels.py:function (a path relative to this file) "
            "or package.module:function",
        )
        return None
    if is_path and "." in os.path.basename(place).removesuffix(".py"):
        # The file is imported as a module, and the import system takes a dot for a package.
        faults.add(at.mark, f"found the file name {shown(place)}, wanted one with no dot but that of .py")
        return None
    source = Source(
        written=written,
        path=os.path.abspath(os.path.join(os.path.dirname(file), place)) if is_path else None,
        module=None if is_path else place,
        function=match.group(2),
    )
    try:
        return source, read_signature(source)
    except UsageError as error:
        faults.add(at.mark, str(error))
        return None


def _kernel(draft: KernelDraft, file: str, faults: Faults) -> KernelSpec | None:
    """Check one kernel and convert it; None where it has a fault."""
    before = len(faults)
    source = _source(draft.source, file, faults) if draft.source else None
    if draft.targets is None and "targets" not in draft.bad:
        faults.add(draft.mark, "found no key 'targets', wanted a list of targets")
    params = draft.params.value if draft.params else ()
    if draft.params and source:
        check_claims(draft.params, source[1], faults)
    check_loops(params, faults)
    ints = int_params(params) if draft.params else None
    axes = Axes(None if "axes" in draft.bad else draft.axes, axis_roles(params), ints, faults)
    include = [include_rule(rule, axes, faults) for rule in draft.include or ()]
    exclude = [exclude_rule(rule, axes, faults) for rule in draft.exclude or ()]
    targets = tuple(at.value for at in draft.targets or ())
    scope = Scope(
        axes=axes,
        targets=targets,
        constexprs={n.value: p.value for n, p in params if isinstance(p, ConstexprDraft)},
        ints=ints or frozenset(),
        unsure=draft.params is None or any(param is None for _, param in params),
        faults=faults,
    )
    converted = [scope.param(name, param) for name, param in params if param is not None]
    launch = scope.launch(draft.launch or _DEFAULT_LAUNCH)
    ready = [param for param in converted if param is not None]
    if draft.bad or len(faults) != before or source is None or launch is None or draft.kernel is None:
        return None
    spec = KernelSpec(
        kernel=draft.kernel.value,
        file=file,
        line=draft.mark.line,
        source=source[0],
        blocks=axes.blocks,
        params=tuple(ready),
        launch=launch,
        targets=targets,
        exclude=tuple(rule for rule in exclude if rule is not None),
        include=tuple(rule for rule in include if rule is not None),
        general=draft.general.value if draft.general else None,
    )
    return spec if _is_small(spec, draft.mark, faults) else None


def _is_small(spec: KernelSpec, mark: Mark, faults: Faults) -> bool:
    """Count what a spec would make, without making any of it; report one that is too large."""
    combinations = len(spec.include) + sum(
        prod(len(axis.bounds if isinstance(axis, BucketAxis) else axis.rows) for axis in block.axes)
        for block in spec.blocks
    )
    asked = combinations * prod(map(_claims, spec.params)) * len(spec.targets)
    if asked <= MAX_VARIANTS:
        return True
    faults.add(
        mark,
        f"found {asked} variants of {spec.kernel} (axes x claims x targets), wanted at most {MAX_VARIANTS}",
    )
    return False


def _claims(param: Param) -> int:
    if isinstance(param, ConstexprParam):
        return 1
    claims = param.align if isinstance(param, PointerParam) else param.specialize
    return 1 if isinstance(claims, Table) else len(claims)
