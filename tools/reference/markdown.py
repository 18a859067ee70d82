"""Pieces of Markdown that the pages share."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([row(head), "|" + "---|" * len(head), *map(row, rows)])


def page(*parts: str) -> str:
    """Paragraphs, tables and headings, with a line between them."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def anchor(heading: str) -> str:
    """The anchor that GitHub and the site give a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return re.sub(r" +", "-", plain.strip())


def from_docs(text: str, folder: str = "reference") -> str:
    """A text whose links start at `docs/`, for a page in that folder of it."""
    return _LINK.sub(
        lambda link: f"]({posixpath.relpath(link[1], folder) if link[1] else ''}{link[2] or ''})", text
    )
