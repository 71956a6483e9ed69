"""docs/reference/environment.md lists each variable that the code reads, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
READ = re.compile(r'"(AOT_[A-Z_]+)"')


def test_every_variable_is_listed() -> None:
    sources = [path for folder in ("aot", "build", "loader") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 50
    read = {name for path in sources for name in READ.findall(path.read_text(encoding="utf-8"))}
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(AOT_[A-Z_]+)`", page, re.MULTILINE))
    assert read == listed
