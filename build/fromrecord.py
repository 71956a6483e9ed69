"""Recorded calls to changed specs: the smallest additions after which a build serves every call.

For each kernel: which records does its spec not serve; which parameters must follow an axis for
that (``recordslots``); which values of axes serve each record (``recordplaces``); whether a new
value joins its axis, or, where that would multiply the variants, single combinations are
included. The text is changed in place (``specedit``), read again and checked: a record that
is still not served is a problem that is named, and leaves no trace in the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aot.build.plan import make_plan
from aot.build.recordgrid import Copies, Wanted, included, joined, spread
from aot.build.recordneeds import runnable, serves
from aot.build.recordplaces import (
    NoPlace,
    Place,
    find_place,
    names_of,
    rows_of,
)
from aot.build.recordslots import free_slots
from aot.build.recordtables import NewRow
from aot.build.specedit import SpecText
from aot.build.specfile import load_specs
from aot.build.yamlspans import EditError
from aot.errors import SpecError, nearest
from aot.recordfile import Record, by_kernel
from aot.spec import BucketAxis, Const, KernelSpec
from aot.target import KNOWN_TARGETS

# A value joins its axis as long as that makes no more than so many variants for each that was asked for.
_WORTH = 3
# A record may need a value that only the changes for another one make possible.
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A spec file before and after; ``before`` and ``after`` count the variants of its kernels."""

    file: str
    old: str
    new: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What a record asks of specs.

    ``files``: every spec file that has a recorded kernel, changed or not. ``served``: calls that
    the specs serve as they are; ``added``: calls that the changes serve. ``problems``: a
    sentence for each kind of call that no change serves.
    """

    files: tuple[FileChange, ...]
    served: int
    added: int
    problems: tuple[str, ...]


def revise(
    paths: Sequence[str], texts: Mapping[str, str], records: Sequence[Record], *, exact: bool = False
) -> Revision:
    """Return the changes to the spec files ``paths`` after which a build serves ``records``.

    ``texts`` has the text of every file of ``paths``. ``exact``: add what was recorded and nothing
    around it. Raises ``SpecError`` where the specs have faults.
    """
    book = _Book(paths, dict(texts))
    specs = {spec.kernel: spec for spec in book.specs()}
    problems: list[str] = []
    served = added = 0
    old = dict(book.texts)
    touched: list[str] = []
    for kernel, wanted in by_kernel(records).items():
        spec = specs.get(kernel)
        if spec is None:
            problems.append(
                f"kernel {kernel!r}: found it in the record and in no spec of {', '.join(paths)}; "
                "give the spec that its bundle was built from" + nearest(kernel, specs)
            )
            continue
        if spec.file not in touched:
            touched.append(spec.file)
        # What missed for want of shared memory will do so again, though its spec has the variant.
        ready = [r for r in wanted if serves(spec, r) and not _hopeless(spec, r)]
        served += sum(record.count for record in ready)
        refused = _Revised(book, kernel, exact).run(_without(wanted, ready))
        asked = sum(record.count for record in wanted) - sum(record.count for record in ready)
        added += asked - sum(record.count for record, _ in refused)
        problems += [f"kernel {kernel!r}: {_calls(record)} {record}: {why}" for record, why in refused]
    files = [
        FileChange(
            file=file,
            old=old[file],
            new=book.texts[file],
            before=_count(_Book(paths, old).of(file)),
            after=_count(book.of(file)),
        )
        for file in touched
    ]
    return Revision(files=tuple(files), served=served, added=added, problems=tuple(problems))


def _without(records: Sequence[Record], gone: Sequence[Record]) -> list[Record]:
    taken = {id(record) for record in gone}
    return [record for record in records if id(record) not in taken]


def _calls(record: Record) -> str:
    return "1 call" if record.count == 1 else f"{record.count} calls"


def _count(specs: Sequence[KernelSpec]) -> int:
    return len(make_plan(specs).variants)


class _Book:
    """Spec files as texts that change."""

    def __init__(self, paths: Sequence[str], texts: dict[str, str]) -> None:
        self.paths = paths
        self.texts = texts

    def specs(self) -> tuple[KernelSpec, ...]:
        return load_specs(self.paths, self.texts)

    def of(self, file: str) -> list[KernelSpec]:
        return [spec for spec in self.specs() if spec.file == file]

    def spec(self, kernel: str) -> KernelSpec:
        return next(spec for spec in self.specs() if spec.kernel == kernel)


class _Revised:
    """The changes for one kernel."""

    def __init__(self, book: _Book, kernel: str, exact: bool) -> None:
        self.book = book
        self.kernel = kernel
        self.exact = exact
        self.file = book.spec(kernel).file

    def run(self, records: Sequence[Record]) -> list[tuple[Record, str]]:
        """Change the text for the records; return those that it could not be changed for, and why."""
        spec = self.book.spec(self.kernel)
        refused = [(r, why) for r in records if (why := _hopeless(spec, r))]
        open_ = _without(records, [r for r, _ in refused])
        while open_:
            before = self.book.texts[self.file]
            failed = self._try(open_)
            if not failed:
                break
            # Without a trace of those that failed: what was freed for them may be of no use.
            self.book.texts[self.file] = before
            refused += failed
            open_ = _without(open_, [r for r, _ in failed])
        return refused

    def _try(self, records: Sequence[Record]) -> list[tuple[Record, str]]:
        before = self.book.texts[self.file]
        try:
            for _ in range(_ROUNDS):
                spec = self.book.spec(self.kernel)
                left = [r for r in records if not serves(spec, r)]
                if not left:
                    break
                self._add_targets(spec, left)
                text = SpecText(self.book.texts[self.file])
                free_slots(spec, left, text, self.exact)
                self.book.texts[self.file] = text.text
                spec = self.book.spec(self.kernel)
                left = [r for r in left if not serves(spec, r)]
                places = [(r, find_place(spec, r, self.exact)) for r in left]
                failed = [(r, "; ".join(p.reasons)) for r, p in places if isinstance(p, NoPlace)]
                if failed:
                    return failed
                self._apply(spec, [(r, p) for r, p in places if isinstance(p, Place)])
            # Planning evaluates every value: a table without a row shows here.
            make_plan([self.book.spec(self.kernel)])
        except (SpecError, EditError) as error:
            self.book.texts[self.file] = before
            if len(records) > 1:
                alone = [failed for r in records for failed in self._alone(r)]
                # Where each works alone, the last is left for another run.
                return alone or [(records[-1], f"the spec cannot be changed for it: {_first(error)}")]
            return [(records[0], f"the spec cannot be changed for it: {_first(error)}")]
        spec = self.book.spec(self.kernel)
        return [(r, "the change that was tried does not serve it") for r in records if not serves(spec, r)]

    def _alone(self, record: Record) -> list[tuple[Record, str]]:
        """What :meth:`_try` says of one record, the text left as it was."""
        before = self.book.texts[self.file]
        failed = self._try([record])
        self.book.texts[self.file] = before
        return failed

    def _add_targets(self, spec: KernelSpec, records: Sequence[Record]) -> None:
        text = SpecText(self.book.texts[self.file])
        targets = list(spec.targets)
        for capability in dict.fromkeys(r.capability for r in records):
            if all(t.reject_reason(capability) for t in targets):
                specific = [t for t in spec.targets if t.capability >= 90]
                suffix = "a" if specific and all(t.specific for t in specific) and capability >= 90 else ""
                text.add_target(self.kernel, f"sm_{capability}{suffix}")
        self.book.texts[self.file] = text.text

    def _apply(self, spec: KernelSpec, places: list[tuple[Record, Place]]) -> None:
        text = SpecText(self.book.texts[self.file])
        wanted = [(p, spread(spec, r, p, self.exact)) for r, p in places if p.new]
        joins = joined(spec, wanted, self._copies(spec, text, wanted), 1 if self.exact else _WORTH)
        for block, index, row in joins:
            axis = spec.blocks[block].axes[index]
            text.add_value(self.kernel, block, names_of(axis)[0], row, isinstance(axis, BucketAxis))
        rows: dict[tuple[str, bool, type, Const], NewRow] = {}
        for place, _ in wanted:
            for choice in place.choices:
                for new in choice.rows:
                    rows.setdefault((new.slot, new.is_option, type(new.key), new.key), new)
        for new in rows.values():
            text.add_row(self.kernel, new.slot, new.is_option, new.key, new.result)
        text.include(self.kernel, included(spec, wanted, joins))
        self.book.texts[self.file] = text.text

    def _copies(self, spec: KernelSpec, text: SpecText, wanted: Wanted) -> Copies:
        """For each axis with a new row the other kernels' blocks that share it, as lengths of their axes."""
        found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for place, _ in wanted:
            for index, _ in place.new:
                if (place.block, index) in found:
                    continue
                axis = spec.blocks[place.block].axes[index]
                if text.is_shared(self.kernel, place.block, names_of(axis)[0]):
                    found[place.block, index] = [
                        tuple(len(rows_of(a)) for a in block.axes if a != axis)
                        for other in self.book.of(self.file)
                        if other.kernel != self.kernel
                        for block in other.blocks
                        if axis in block.axes
                    ]
        return found


def _hopeless(spec: KernelSpec, record: Record) -> str:
    """Say why no spec can serve a record, or return ""."""
    if record.by != "bundle":
        return f"it was recorded by {record.by!r}, this version makes specs of what a bundle recorded"
    if record.shared is not None:
        return (
            f"a variant fits it but needs {record.shared} bytes of shared memory, the device allows "
            f"{record.max_shared}; lower num_stages or the block's size in the spec, then record again"
        )
    if not runnable(spec, record) and f"sm_{record.capability}" not in KNOWN_TARGETS:
        return f"this version knows no target for capability {record.capability / 10:.1f}"
    return ""


def _first(error: Exception) -> str:
    return str(error).splitlines()[0]
