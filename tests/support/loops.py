"""For a test of one loop: these stand above `in_real_time` or `in_virtual_time`.

`on_one_loop` is for what takes long, where cheaper tests show the loop: one of the two, by the name of the test.
"""

from __future__ import annotations

import pytest

on_asyncio = pytest.mark.parametrize("backend", ["asyncio"])
on_trio = pytest.mark.parametrize("backend", ["trio"])
on_one_loop = pytest.mark.one_loop  # `conftest` chooses
