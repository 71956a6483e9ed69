"""What the tests of the loader share: bundles of drafts, scripts that run against the fake driver.

Each script runs in a process of its own, with unmodified cuda-bindings and the library of
``tests/fakecuda`` as ``libcuda.so.1``. What a kernel would read is taken from the records in
the cubin, so these tests see the bytes on the far side of the ABI.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from bundlemaker import Draft, pointer, scalar, variant
from fakecuda import Run

Runner = Callable[..., Run]


def simple(**fields: Any) -> Draft:
    """k(x, n): the variants that any x and any n need."""
    binary = fields.pop("binary", {})
    made = [
        variant(pointer("x", align=align), scalar("n", "i32", claim), **fields)
        for align in (16, 1)
        for claim in ("1", "16", "any")
    ]
    return Draft(variants=made, binary=binary)


def ints(launch: dict[str, Any], *types: str) -> list[Any]:
    """The parameters of a recorded launch, by struct codes."""
    pairs = zip(types, launch["params"], strict=True)
    return [struct.unpack(f"<{code}", bytes.fromhex(data))[0] for code, data in pairs]
