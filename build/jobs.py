"""Compile jobs and their results: plain values that cross process boundaries."""

from __future__ import annotations

import hashlib

from msgspec import Struct
from msgspec.structs import replace

from aot.build.abi import CubinInfo
from aot.manifest import Const, Options, encode


class CompileJob(Struct, frozen=True, kw_only=True):
    """One call of the compiler.

    ``signature`` has Triton's type of every parameter in source order, ``constexpr`` for
    constexprs and for integers claimed to be 1; ``constexprs`` has the values of both;
    ``divisible`` names the parameters claimed to be multiples of 16. ``path`` is the
    Python file, ``module`` its dotted name where the spec gave one (then the function is
    imported by that name). Jobs with equal :attr:`key` give equal cubins.
    """

    path: str
    module: str | None
    function: str
    source_sha256: str
    signature: tuple[tuple[str, str], ...]
    constexprs: tuple[tuple[str, Const], ...]
    divisible: tuple[str, ...]
    options: Options
    target: str

    @property
    def key(self) -> str:
        """The sha256 of the job's canonical JSON, in which 1, 1.0 and true differ.

        The path is left out: what lies at it is in ``source_sha256``.
        """
        return hashlib.sha256(encode(replace(self, path=""))).hexdigest()


class Compiled(Struct, frozen=True, kw_only=True):
    """What the compiler gave: the cubin, and what only its metadata knows.

    ``shared`` is dynamic shared memory in bytes, ``scratch`` the size and alignment in
    bytes of each program's global scratch. ``info`` is what the cubin says of itself.
    """

    cubin: bytes
    info: CubinInfo
    symbol: str
    shared: int
    scratch: tuple[int, int]


class Failed(Struct, frozen=True, kw_only=True):
    """A job that gave no cubin, and why, in one or a few lines."""

    error: str


Result = Compiled | Failed


class Toolchain(Struct, frozen=True, kw_only=True):
    """The compiler of the workers: its versions, and the environment settings that it runs with."""

    triton: str
    ptxas: str
    environment: dict[str, str]
