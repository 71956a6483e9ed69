"""docs/benchmarks.md says what the result files say."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_is_that_of_the_results() -> None:
    """After new results: ``python -m benchmarks.report > docs/benchmarks.md``."""
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.report import document
    finally:
        sys.path.remove(str(ROOT))
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == document()
