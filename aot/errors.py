"""The errors a user of aot-kernels can meet.

Every error names the place, what was found and what was wanted. ``UsageError`` and
its children are the caller's to mend (the CLI exits with 2); everything else is work
or data that failed (the CLI exits with 1).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import ClassVar


class AotError(Exception):
    """Base of every error that this package raises on purpose.

    ``exit_code`` is what the command line returns for it.
    """

    exit_code: ClassVar[int] = 1


class UsageError(AotError):
    """Bad input: an argument, an option or a file that the caller wrote."""

    exit_code: ClassVar[int] = 2


class SpecError(UsageError):
    """One or more faults in spec files, reported together, one a line.

    ``faults`` holds each line, in the form ``file:line:column: found …, wanted …``.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        super().__init__("\n".join(self.faults))


class TargetError(UsageError):
    """A target name that is not one, or a dtype or size that a target does not have."""


class BuildError(AotError):
    """A compile job, or the build as a whole, failed."""


class BundleError(AotError):
    """A bundle is damaged, incomplete or of a format that this version does not read."""


class NoBundleError(BundleError):
    """There is no bundle at a path, sound or damaged, or none in any place that was looked at: the
    path is wrong, and the caller's to mend."""

    exit_code: ClassVar[int] = 2


class LaunchError(AotError):
    """A call that cannot be launched: wrong arguments, wrong device, or a grid over the limits."""


class DriverError(AotError):
    """The CUDA driver refused a call. Names the call, the CUDA error and the kernel."""


class KernelMiss(AotError):
    """No prebuilt variant serves a call.

    The message says which candidates there were, why each was rejected, and which YAML
    would add the variant. ``kernel`` and ``reasons`` are the same as data; ``kind`` is what is
    wrong in one word: ``kernel`` (no bundle has it), ``target`` (it is not built for this GPU), or
    what the nearest variant lacks (``dtype``, ``bound``, ``align``, ``constexpr`` …).
    """

    def __init__(self, message: str, *, kernel: str, reasons: tuple[str, ...], kind: str = "variant") -> None:
        super().__init__(message)
        self.kernel = kernel
        self.reasons = reasons
        self.kind = kind


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the valid word closest to ``word``, or ``""``."""
    import difflib  # Only a mistake needs it.

    found = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""
