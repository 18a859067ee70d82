"""Draw `docs/demo.svg`, the picture in README: two scenes of `greenroom demo`, word for word as it printed them.

`make demo-picture` runs the demo and writes the picture. It is text in an SVG, so it loads no font and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs" / "demo.svg"
SCENES: Final = ("Idle for", "A crash")  # how the headings of the scenes begin
WIDTH, LINE, MARGIN = 900, 19, 20
LETTER: Final = 7.85  # the width of a letter of the font in a browser; longer lines are wrapped
LONGEST: Final = int((WIDTH - 2 * MARGIN) / LETTER)


def main() -> int:
    """Run the demo and write the picture."""
    done = subprocess.run(
        [sys.executable, "-m", "greenroom", "demo"], capture_output=True, text=True, timeout=120, check=True
    )
    PICTURE.write_text(drawn(list(chosen(done.stdout))), encoding="utf-8")
    print(f"written: {PICTURE.relative_to(ROOT)}")
    return 0


def chosen(story: str) -> Iterator[str]:
    """The lines of the chosen scenes. Raises `ValueError` when there is no such scene."""
    scenes = {scene.split("\n", 1)[0]: scene for scene in story.split("\n== ")}
    for beginning in SCENES:
        heading = next((each for each in scenes if each.startswith(beginning)), None)
        if heading is None:
            raise ValueError(f"the demo has no scene that begins with {beginning!r}")
        yield heading.removesuffix(" ==")
        yield from scenes[heading].rstrip().splitlines()[1:]
        yield ""


def drawn(lines: Sequence[str]) -> str:
    """The picture of these lines."""
    rows = [(part, _look(line)) for line in lines for part in _wrapped(line.rstrip())]
    height = len(rows) * LINE + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"',
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">',
        "<title>What greenroom demo prints</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#1b1f24"/>',
        *(_text(part, MARGIN + (row + 0.75) * LINE, look) for row, (part, look) in enumerate(rows) if part),
        "</svg>",
        "",
    ])  # fmt: skip


def _wrapped(line: str) -> Iterator[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 3)
    while len(line) > LONGEST:
        end = line.rindex(" ", 0, LONGEST)
        yield line[:end]
        line = indent + line[end + 1 :]
    yield line


def _text(line: str, y: float, look: str) -> str:
    x = MARGIN + (len(line) - len(line.lstrip())) * LETTER
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(line.strip(), quote=False)}</text>'


def _look(line: str) -> str:
    """How a line is drawn, by what kind of line it is."""
    if not line.startswith(" "):
        return 'fill="#ffffff" font-weight="bold"'
    if "lost" in line:
        return 'fill="#ff8a80"'
    if line.lstrip().startswith("->"):
        return 'fill="#a5d6a7"'
    return 'fill="#8ab4f8"' if line.lstrip().startswith(". ") else 'fill="#e6e6e6"'


if __name__ == "__main__":
    sys.exit(main())
