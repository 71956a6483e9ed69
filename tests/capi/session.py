"""A probe with the fake driver: bundles of drafts, opened by the C API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bundlemaker import Draft, make_bundle

from capi import SANITIZERS, Probe

BASE = 2**40
X = f"=p:float32:{BASE + 4096}"
ODD = f"=p:float32:{BASE + 4100}"


class Session:
    """A probe with an open bundle and the fake driver, and what the driver was asked."""

    def __init__(
        self, driver: Path, path: Path, log: Path, sanitizers: Sequence[str] = SANITIZERS, **fake: str
    ) -> None:
        log.write_text("")
        self.log = log
        self.path = path
        names = {f"FAKECUDA_{name.upper()}": value for name, value in fake.items()}
        self.probe = Probe(sanitizers, LD_LIBRARY_PATH=str(driver), FAKECUDA_LOG=str(log), **names)
        assert self.probe("open", path) == ["ok"]

    def __call__(self, *fields: object) -> list[str]:
        return self.probe(*fields)

    def fault(self, *fields: object) -> str:
        return self.probe.fault(*fields).replace(str(self.path), "B")

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def named(self, call: str) -> list[dict[str, Any]]:
        return [c for c in self.calls if c["call"] == call]

    @property
    def launches(self) -> list[dict[str, Any]]:
        return [c for c in self.calls if c["call"].startswith("cuLaunchKernel") and "symbol" in c]


Start = Callable[..., Session]


def sessions(driver: Path, folder: Path) -> Iterator[Start]:
    """Yield a function that makes a bundle of drafts and opens it in a probe; end the probes afterwards."""
    running: list[Session] = []

    def start(*drafts: Draft, **fake: Any) -> Session:
        number = len(running)
        path = make_bundle(folder / f"bundle{number}", *drafts)
        running.append(Session(driver, path, folder / f"log{number}", **fake))
        return running[-1]

    yield start
    for session in running:
        session.probe.close()
