"""The pages that a person reads first do what they say: each is run as its reader would. `make howto` runs the how-tos
(`tests/howto`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.pages import Reader, fits, steps
from tests.support.rows import for_each

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIRST = [
    DOCS.parent / "README.md",
    DOCS / "tutorial.md",
    DOCS / "incidents.md",
    *sorted(DOCS.glob("coming-from/*.md")),
]
HOWTOS = sorted(DOCS.glob("howto/*.md"))


@pytest.fixture
def reader(home: Path) -> Iterator[Reader]:
    reader = Reader(home)
    yield reader
    reader.leave()


@pytest.mark.parametrize("page", FIRST, ids=lambda page: page.relative_to(DOCS.parent).as_posix())
def test_a_page_does_what_it_says(page: Path, reader: Reader) -> None:
    reader.read(page)


# ---- the reader itself -----------------------------------------------------------------------------------------------


@for_each(
    ("shown", "printed"),
    [
        ("✓ notes  connected, pid 41234", "✓ notes connected,\npid 7"),
        ("took 1.5 ms", "took 12,000 ms"),
        ("first\n…\nlast", "first\nlast"),
        ("first\n…\nlast", "first\n1\n2\nlast"),
        ('{"weekday": "…"}', '{"weekday": "Friday"}'),
    ],
)
def test_the_same_shape_is_seen(shown: str, printed: str) -> None:
    assert fits(shown, printed) is not None


@for_each(
    ("shown", "printed"),
    [("pid 41234", "pid ?"), ("first\n…\nlast", "first\n1"), ("a\nb", "a"), ("a", "a\nb")],
)
def test_another_shape_is_seen(shown: str, printed: str) -> None:
    assert fits(shown, printed) is None


def page(home: Path, text: str) -> Path:
    file = home / "page.md"
    file.write_text(text)
    return file


def test_a_page_is_run_in_its_order_with_the_numbers_that_were_printed(home: Path, reader: Reader) -> None:
    reader.read(
        page(
            home,
            """Write `deep/say.py`:

```python
import os
print("I am", os.getpid())
```

```console
$ cd deep; export WORD=again
$ python say.py
I am 41234
$ echo "it was 41234" > told; echo $WORD
again
```

<!-- not run: it would fetch something -->
```sh
false
```
""",
        )
    )

    assert int((home / "work/deep/told").read_text().removeprefix("it was ")) != 41234


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("```sh\ntrue\nfalse\n```\n", "page.md:2"),
        ("so:\n\n```console\n$ echo one\ntwo\n```\n", "page.md:4"),
    ],
)
def test_a_page_that_says_something_else_fails_with_its_line(
    home: Path, reader: Reader, text: str, line: str
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=line):
        reader.read(page(home, text))


def test_a_file_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="which file is this json"):
        list(steps("Some file:\n\n```json\n{}\n```\n"))
