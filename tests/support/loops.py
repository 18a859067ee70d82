"""For a test of one loop: these stand above `in_real_time` or `in_virtual_time`.

`on_one_loop` is for what takes long, where cheaper tests show the loop: one of the two, by the name of the test. Of
the rows of a search that takes long, `rows_on_loops` gives each to one loop, so that both have half of them; `make
soak` and `make mutants` search each on both.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .profiles import IS_DEEP, IS_MUTATED

LOOPS = ("trio", "asyncio")
on_asyncio = pytest.mark.parametrize("backend", ["asyncio"])
on_trio = pytest.mark.parametrize("backend", ["trio"])
on_one_loop = pytest.mark.one_loop  # `conftest` chooses


def rows_on_loops(name: str, rows: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrizes a test with its rows, as the argument `name`, and with `backend`."""
    loops = [
        LOOPS if IS_DEEP or IS_MUTATED else LOOPS[place % 2 : place % 2 + 1] for place in range(len(rows))
    ]
    pairs = [
        pytest.param(row, backend, id=f"{getattr(row, '__name__', row)}-{backend}")
        for row, those in zip(rows, loops, strict=True)
        for backend in those
    ]
    return pytest.mark.parametrize((name, "backend"), pairs, indirect=["backend"])
