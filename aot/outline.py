"""What opening a bundle needs of its manifest, found in the bytes without decoding them.

A manifest is written in one way only (``aot.manifest.encode_manifest``), and its digest proves that
the bytes are as they were written: keys in order, no spaces, every quote inside a string escaped. So
``{"grid":`` begins a kernel and ``{"count":`` a table wherever they stand. The decoder, whose import
takes longer than all of opening, is left to the first kernel that is asked for. Anything that is not
exactly so has no outline, and is read whole, which also says what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

FORMAT = "aot-bundle"
FORMAT_VERSION = 1
# The launch ABI: parameters in source order without constexprs and ``==1`` integers, then
# the hidden scratch pointers. A bundle of another ABI is refused, never launched.
LAUNCH_ABI = 1

_START = b'{"digest":"'
_HEAD = f'","format":"{FORMAT}","format_version":{FORMAT_VERSION},"kernels":['.encode()
_TAIL = b'],"launch_abi":'
_KERNEL, _NAME, _TABLES = b'{"grid":', b',"name":"', b'"tables":['
_COUNT = re.compile(rb'\{"count":([0-9]+),')
_DIGITS = 64
_FILE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.-")


class PackOutline(NamedTuple):
    """A pack: its ``target``, the name of its file, the file's ``size`` in bytes."""

    target: str
    file: str
    size: int


class Outline(NamedTuple):
    """A manifest's digest, packs and ``ptxas``, and its kernels by name: where the JSON of each begins
    and ends, or None where the manifest was decoded whole."""

    digest: str
    packs: tuple[PackOutline, ...]
    ptxas: str
    kernels: dict[str, tuple[int, int] | None]


def is_as_written(data: bytes, digest: str) -> bool:
    """Whether ``data`` is the canonical JSON, in one line, that ``digest`` was taken of."""
    filled = _START + digest.encode() + b'"'
    if not data.startswith(filled):
        return False
    hashed = hashlib.sha256(_START + b'"')
    end = len(data) - data.endswith(b"\n")
    # A view, so that a large manifest is not copied.
    hashed.update(memoryview(data)[len(filled) : end])
    return hashed.hexdigest() == digest


def outline(data: bytes) -> Outline | None:
    """The outline of ``manifest.json``, or None where it must be decoded to know whether it is sound."""
    try:
        return _outline(data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # Numbers, names or lists that are not where they belong.
        return None


def _outline(data: bytes) -> Outline | None:
    start = len(_START) + _DIGITS
    digest = data[len(_START) : start].decode("ascii")
    at, end = start + len(_HEAD), data.rindex(_TAIL)
    if data[start:at] != _HEAD or not is_as_written(data, digest):
        return None
    tail = json.loads(b"{" + data[end + 2 :])
    packs = _packs(tail)
    if packs is None:
        return None
    counts = _COUNT.findall(data, at, end)
    with_pack = sum(data.count(f'"target":"{pack.target}"'.encode(), at, end) for pack in packs)
    n_kernels = data.count(_TABLES, at, end)
    kernels: dict[str, tuple[int, int] | None] = {}
    while at < end:
        after = data.find(b"," + _KERNEL, at, end)
        stop = end if after == -1 else after
        begin = data.index(_NAME, at, stop) + len(_NAME)
        name = data[begin : data.index(b'"', begin, stop)].decode("ascii")
        if not data.startswith(_KERNEL, at) or name in kernels or not name.isprintable() or "\\" in name:
            return None
        kernels[name] = at, stop
        at = stop + 1
    if (
        len(kernels) != n_kernels
        or len(counts) != with_pack
        or not 0 < sum(map(int, counts)) == tail["variants"]
    ):
        return None
    return Outline(digest, packs, tail["provenance"]["ptxas"], kernels)


def _packs(tail: dict[str, Any]) -> tuple[PackOutline, ...] | None:
    """The packs of what follows the kernels, or None where any of it is not as it should be."""
    if list(tail) != ["launch_abi", "missing", "packs", "provenance", "variants"]:
        return None
    made = tail["provenance"]
    packs = tuple(PackOutline(pack["target"], pack["file"], pack["size"]) for pack in tail["packs"])
    sound = (
        tail["launch_abi"] == LAUNCH_ABI
        and tail["missing"] == []
        and list(made) == ["aot", "environment", "ptxas", "specs", "triton"]
        and _are_strings(made["aot"], made["ptxas"], made["triton"])
        and _are_strings(*made["environment"].values(), *made["specs"].values())
        and all(len(sha256) == _DIGITS for sha256 in made["specs"].values())
        and all(list(pack) == ["cubins", "file", "size", "target"] for pack in tail["packs"])
        and _are_counts(tail["launch_abi"], tail["variants"])
        and _are_counts(*(pack[name] for pack in tail["packs"] for name in ("cubins", "size")))
        and len({pack.target for pack in packs}) == len(packs)
        and all(_is_file(pack.file) and pack.target.isascii() for pack in packs)
    )
    return packs if sound else None


def _are_strings(*values: object) -> bool:
    return all(type(value) is str for value in values)


def _are_counts(*values: Any) -> bool:
    return all(type(value) is int and 0 <= value <= 2**53 for value in values)


def _is_file(name: str) -> bool:
    return _FILE.issuperset(name) and 1 <= len(name) <= 100 and name[0] not in "_.-"
