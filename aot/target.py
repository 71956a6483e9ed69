"""Targets: the GPU architectures that a cubin is compiled for, and what each allows.

A cubin runs on GPUs of the same major compute capability and the same or a newer minor
one; an architecture-specific target (suffix ``a``) runs on exactly its capability.
Source: CUDA C++ Programming Guide, "Binary Compatibility" and "Feature Set Compiler
Targets"; the limits are those of its table "Technical Specifications per Compute
Capability".
"""

from __future__ import annotations

import re

from msgspec import Struct

from aot.errors import TargetError, nearest

# Largest dynamic shared memory of one block, in bytes, by capability.
_SHARED = {
    75: 64 * 1024,
    80: 163 * 1024,
    86: 99 * 1024,
    87: 163 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    103: 227 * 1024,
    110: 227 * 1024,
    120: 99 * 1024,
    121: 99 * 1024,
}

# The grid limits are the same for every capability that this package knows.
MAX_GRID: tuple[int, int, int] = (2**31 - 1, 65535, 65535)

_SPELLING = r"(?:sm_)?(?:([1-9][0-9]?)\.([0-9])|([1-9][0-9]{1,2}))(a?)"


class Target(Struct, frozen=True, order=True):
    """One compile target, spelled ``sm_90`` or ``sm_90a``.

    ``capability`` is major * 10 + minor. ``specific`` is the ``a`` suffix: the cubin may
    use instructions of exactly this capability, and runs on no other.
    """

    capability: int
    specific: bool = False

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``sm_90``, ``sm_90a``, ``90``, ``90a``, ``9.0`` or ``9.0a``.

        Raises ``TargetError`` with the nearest valid name for anything else.
        """
        known = _BY_NAME.get(text)
        if known is not None:
            return known
        match = re.fullmatch(_SPELLING, text, re.ASCII)
        if match:
            major, minor, joined, suffix = match.groups()
            capability = int(joined) if joined else int(major) * 10 + int(minor)
            target = cls(capability, suffix == "a")
            if target in _KNOWN:
                return target
        names = [str(t) for t in _KNOWN]
        digits = re.sub(r"(?<=_)0+", "", text.lower().replace("o", "0").replace("compute", "sm"))
        digits = re.sub(r"^sm(?=\d)", "sm_", digits)
        raise TargetError(f"found target {text!r}, wanted one of {', '.join(names)}" + nearest(digits, names))

    def __str__(self) -> str:
        return f"sm_{self.capability}{'a' if self.specific else ''}"

    @property
    def dotted(self) -> str:
        """The compute capability as CUDA writes it, such as ``9.0``."""
        return dotted(self.capability)

    @property
    def max_shared(self) -> int:
        """Largest dynamic shared memory of one block, in bytes."""
        return _SHARED[self.capability]

    def reject_reason(self, capability: int) -> str | None:
        """Say why a cubin of this target does not run on a GPU of ``capability``, or None."""
        device = dotted(capability)
        if self.specific and capability != self.capability:
            return f"{self} runs on capability {self.dotted} only, the device is {device}"
        if capability // 10 != self.capability // 10:
            return f"{self} runs on capability {self.dotted[:-1]}x only, the device is {device}"
        if capability < self.capability:
            return f"{self} needs capability {self.dotted} or newer, the device is {device}"
        return None

    def preference(self) -> tuple[int, bool]:
        """Sort key among the targets that a device can run: the largest is the best."""
        return (self.capability, self.specific)


_KNOWN: tuple[Target, ...] = tuple(
    Target(capability, specific)
    for capability in sorted(_SHARED)
    for specific in ((False, True) if capability >= 90 else (False,))
)

_BY_NAME = {str(target): target for target in _KNOWN}

KNOWN_TARGETS: tuple[str, ...] = tuple(_BY_NAME)


def dotted(capability: int) -> str:
    """A compute capability as CUDA writes it: 9.0 for 90."""
    return f"{capability // 10}.{capability % 10}"


def plain_target(capability: int) -> str:
    """The name of the plain target for a device, or words for one that is not known, for a message."""
    plain = f"sm_{capability}"
    return plain if plain in KNOWN_TARGETS else f"<a target for {dotted(capability)}>"
