"""docs/benchmarks.md and its pictures say what the result files say."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def report() -> Iterator[ModuleType]:
    """benchmarks.report, which is in the checkout alone."""
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import report

        yield report
    finally:
        sys.path.remove(str(ROOT))


def test_the_page_is_that_of_the_results(report: ModuleType) -> None:
    """After new results: ``python -m benchmarks.report``."""
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == report.document()


def test_the_pictures_are_those_of_the_results(report: ModuleType) -> None:
    """Each picture of the page is there, is what its result draws, and is well-formed."""
    drawn = report.pictures()
    page = report.document()
    for name, svg in drawn.items():
        assert f"images/{name}" in page
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") == svg
        ElementTree.fromstring(svg)
    assert page.count("](images/") == len(drawn)


def test_a_section_without_a_result_is_left_out(report: ModuleType, tmp_path: Path) -> None:
    """A page can be made before every measurement was."""
    assert report.document(tmp_path) == report.HEAD
    assert report.pictures(tmp_path) == {}
