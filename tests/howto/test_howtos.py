"""The how-tos do what they say: each is run as its reader would, by `make howto` alone.

Some need what `make test` does not install: Jupyter, FastAPI, gunicorn, Celery and Ray. Nothing of a room may be left
when a page is over, so each ends with a look at what still runs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.pages import ROOT, Reader
from tests.whole.test_pages import DOCS, HOWTOS

NOTEBOOK = DOCS / "howto/notebook.md"


@pytest.fixture
def reader(home: Path) -> Iterator[Reader]:
    reader = Reader(home)
    yield reader
    reader.leave()


@pytest.mark.parametrize("page", [page for page in HOWTOS if page != NOTEBOOK], ids=lambda page: page.name)
def test_a_page_does_what_it_says(page: Path, reader: Reader) -> None:
    reader.read(page)


def test_a_notebook_does_what_its_page_says(home: Path, reader: Reader) -> None:
    code, printed = reader.run(
        f"PYTHONPATH={ROOT} {sys.executable} -m tests.howto.kernels {NOTEBOOK}", seconds=240
    )
    assert code == 0, printed


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("```python\nprint(1)\n```\n```text\none\n```\n", "line 1: printed\n1"),
        ("```python\n1 / 0\n```\n", "line 1: ZeroDivisionError"),
        ("<!-- kernel: fly -->\n", "cannot do this: fly"),
    ],
)
def test_another_notebook_is_seen(home: Path, page: str, wrong: str) -> None:
    file = home / "page.md"
    file.write_text(page)
    done = subprocess.run(
        [sys.executable, "-m", "tests.howto.kernels", file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert wrong in done.stderr
