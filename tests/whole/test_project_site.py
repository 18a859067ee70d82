"""The site of the docs: each page is there, links lead to pages of it, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
MKDOCS = (sys.executable, "-m", "mkdocs", "build")
MOVED = """
import sys
from tools.site import moved
there = {"docs/cli.md", "docs/deep/b.md", "docs/a.svg", "README.md", "SECURITY.md"}
print(moved(sys.argv[1], sys.argv[2], there), end="")
"""


@pytest.mark.parametrize(
    ("text", "folder", "expected"),
    [
        ("see [the line](docs/cli.md).", "", "see [the line](cli.md)."),
        ("[the `line`](docs/cli.md#a-b) [b](cli.md)", "", "[the `line`](cli.md#a-b) b"),
        ("[in two\nlines](cli.md#x)", "docs", "[in two\nlines](cli.md#x)"),
        ("[up](../README.md#x) [s](../SECURITY.md)", "docs", "[up](readme.md#x) [s](security.md)"),
        ("[code](../examples/embed.py), [law](LICENSE)", "docs", "code, law"),
        (
            "[here](#there) [far](https://example.com/x.md)",
            "docs",
            "[here](#there) [far](https://example.com/x.md)",
        ),
        (
            "[a](../cli.md#x) [b](b.md) [c](../../README.md)",
            "docs/deep",
            "[a](../cli.md#x) [b](b.md) [c](../readme.md)",
        ),
        ("[a](deep/b.md)", "docs", "[a](deep/b.md)"),
        ("![a picture](a.svg) ![b](b.svg)", "docs", "![a picture](a.svg) ![b](b.svg)"),
        ("![a picture](docs/a.svg)", "", "![a picture](a.svg)"),
        ("```\n[x](docs/cli.md)\n```\n[x](docs/cli.md)", "", "```\n[x](docs/cli.md)\n```\n[x](cli.md)"),
    ],
)
def test_links_lead_to_pages_of_the_site(text: str, folder: str, expected: str) -> None:
    asked = [sys.executable, "-c", MOVED, text, folder]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == expected


def test_every_page_is_in_it_and_it_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    subprocess.run([*MKDOCS, "--site-dir", tmp_path / "site"], cwd=ROOT, check=True, timeout=PATIENCE)
    pages = {
        page.relative_to(tmp_path / "site").with_suffix("").as_posix(): page.read_text(encoding="utf-8")
        for page in tmp_path.glob("site/**/*.html")
    }
    ours = {
        page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").glob("**/*.md")
    }
    assert pages.keys() == ours | {"404", "readme", "security", "contributing", "changelog"}
    for name, page in pages.items():
        assert not re.findall(
            r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?((?:https?:)?//[^">]*)', page
        ), name
        assert f'href="{name}.html"' in pages["index"] or name in ("404", "index"), (
            "it is in the list of pages"
        )
    styles = [file.read_text(encoding="utf-8") for file in tmp_path.glob("site/**/*.css")]
    assert styles
    assert not any(re.search(r"""(?:url\(["']?|@import ["'])(?:https?:)?//""", style) for style in styles)
