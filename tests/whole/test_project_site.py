"""The site of the docs: links lead to pages of it. `mkdocs build` looks itself at what it has built (`tools.site`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOVED = r"""
import json, sys
from tools.site import below_its_index, moved, title_of
there = {"docs/cli.md", "docs/deep/b.md", "docs/a.svg", "README.md", "SECURITY.md"}
links, pages = json.load(sys.stdin)
said = [moved(text, folder, there) for text, folder, _ in links]
titles = [title_of("# `a` in [b](b.md)\n\nB"), title_of("B")]
json.dump([said, [below_its_index("# A\n\nB", page) for page in pages], titles], sys.stdout)
"""
# A text, the folder of its page, and the text as the site has it.
LINKS = [
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
]

# A page, and its text with the way up to its index.
BELOW = {
    "reference/python/target.md": "# A\n\n[↑ Python reference](../python.md)\n\nB",
    "mcp-tool.md": "# A\n\n[↑ What clients see](doors.md)\n\nB",
    "decisions/index.md": "# A\n\nB",
    "cli.md": "# A\n\nB",
}


def test_links_lead_to_pages_of_the_site() -> None:
    """In a process of its own: MkDocs is not imported beside other tests."""
    asked = [sys.executable, "-c", MOVED]
    done = subprocess.run(
        asked, cwd=ROOT, input=json.dumps([LINKS, list(BELOW)]), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [
        [expected for _, _, expected in LINKS],
        list(BELOW.values()),
        ["a in b", "Greenroom"],
    ]
