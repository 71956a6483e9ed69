"""What opening a bundle needs of its manifest, found in the bytes without decoding them.

A manifest is written in one way only (``aot.manifest.encode_manifest``), and its digest proves that
the bytes are as they were written: keys in order, no spaces, every quote inside a string escaped. So
``{"grid":`` begins a kernel wherever it stands. Finding these takes a fifth of a decoder's time, and
the decoder itself, whose import takes longer than all of opening, is left to the first kernel that is
asked for. Anything that is not exactly so has no outline, and is read whole, which also says what is
wrong.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

FORMAT = "aot-bundle"
FORMAT_VERSION = 1
# The launch ABI: parameters in source order without constexprs and ``==1`` integers, then
# the hidden scratch pointers. A bundle of another ABI is refused, never launched.
LAUNCH_ABI = 1

_START = b'{"digest":"'
_HEAD = f'","format":"{FORMAT}","format_version":{FORMAT_VERSION},"kernels":['.encode()
_TAIL = b'],"launch_abi":'
_KERNEL, _NAME = b'{"grid":', b',"name":"'
_DIGITS = 64
_FILE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.-")


class PackOutline(NamedTuple):
    """A pack: its ``target``, the name of its file, the file's ``size`` in bytes."""

    target: str
    file: str
    size: int


class Outline(NamedTuple):
    """A manifest's digest, packs and ``ptxas``, and its kernels by name: the JSON of each one, or None
    where the manifest was decoded whole."""

    digest: str
    packs: tuple[PackOutline, ...]
    ptxas: str
    kernels: dict[str, bytes | None]


def is_as_written(text: bytes, digest: str) -> bool:
    """Whether ``text`` is the canonical JSON, in one line, that ``digest`` was taken of."""
    filled = _START + digest.encode() + b'"'
    if not text.startswith(filled):
        return False
    hashed = hashlib.sha256(_START + b'"')
    hashed.update(memoryview(text)[len(filled) :])
    return hashed.hexdigest() == digest


def outline(data: bytes) -> Outline | None:
    """The outline of ``manifest.json``, or None where it must be decoded to know whether it is sound."""
    try:
        return _outline(data.removesuffix(b"\n"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # Numbers, names or lists that are not where they belong.
        return None


def _outline(text: bytes) -> Outline | None:
    start = len(_START) + _DIGITS
    digest = text[len(_START) : start].decode("ascii")
    kernels_at, tail_at = start + len(_HEAD), text.rindex(_TAIL)
    if text[start:kernels_at] != _HEAD or not is_as_written(text, digest):
        return None
    tail = json.loads(b"{" + text[tail_at + 2 :])
    packs = _packs(tail)
    before, *kernels = text[kernels_at:tail_at].split(_KERNEL)
    names: dict[str, bytes | None] = {}
    for kernel in kernels:
        name = kernel.split(_NAME, 1)[1].split(b'"', 1)[0].decode("ascii")
        if name.isprintable() and "\\" not in name:
            names[name] = _KERNEL + kernel.removesuffix(b",")
    if packs is None or before or len(names) != len(kernels) or tail["variants"] == 0:
        return None
    return Outline(digest, packs, tail["provenance"]["ptxas"], names)


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
