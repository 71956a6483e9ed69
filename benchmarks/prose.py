"""Paragraphs of the generated page."""

from __future__ import annotations

import textwrap

WIDTH = 118


def prose(text: str) -> str:
    """A paragraph in lines of at most ``WIDTH`` and the empty line behind it, however ``text`` was broken."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
