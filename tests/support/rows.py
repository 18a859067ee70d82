"""A table that one function is tried with, as one test.

`@for_each` takes what `pytest.mark.parametrize` takes, and tries every row in the same test. An item of pytest costs
three milliseconds of processor time in a whole run (it is collected by each worker, and reported to the one that asks),
and what is pure a tenth of one: with an item for each row, their thousands of rows took longer to count than to try. So
it is for functions without fixtures; what opens something has a test for each row, after which nothing may be left.

Every row is tried, whichever fails. An error says its row.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]
Ids = Callable[[Any], object] | Iterable[object] | None


def for_each(names: str | Sequence[str], table: Iterable[Any], *, ids: Ids = None) -> Callable[[Test], Test]:
    """Make of a function a test of all rows. `names`: its parameters, as in "one, other"; a row of several is a tuple.
    `ids`: what a row is called when it fails, for each row or made of each value. One may stand above another."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [tuple(row) if len(keys) > 1 else (row,) for row in table]
    assert rows, "a table without rows tries nothing"
    assert all(len(row) == len(keys) for row in rows), f"a row is not {names}"

    def made(body: Test) -> Test:
        @functools.wraps(body)
        def test(**given: Any) -> None:
            failed: list[BaseException] = []
            for number, row in enumerate(rows):
                try:
                    body(**given, **dict(zip(keys, row, strict=True)))
                except (
                    Exception,
                    pytest.fail.Exception,
                    BaseExceptionGroup,
                ) as error:  # the last of a table below
                    error.add_note(f"row {number}: {_name(ids, number, row)}")
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} rows fail", failed)

        left = [each for each in inspect.signature(body).parameters.values() if each.name not in keys]
        assert len(left) == len(inspect.signature(body).parameters) - len(keys), f"it does not take {names}"
        setattr(test, "__signature__", inspect.Signature(left))  # noqa: B010 -- it is what pytest reads
        return test

    return made


def _name(ids: Ids, number: int, row: tuple[Any, ...]) -> str:
    if ids is None:
        return repr(row)
    if callable(ids):
        return "-".join(str(ids(value)) for value in row)
    return str(list(ids)[number])
