"""What the strategies are put together from."""

from __future__ import annotations

import string
from typing import Any, Final

from hypothesis import strategies as st

WORDS: Final = st.text(string.ascii_lowercase + string.digits + "-_./", min_size=1, max_size=8)
SAYABLE: Final = st.characters(exclude_categories=["Cs"])  # half a surrogate pair is no JSON


def together(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """One object with the keys of all."""
    return st.tuples(*parts).map(_merged)


def _merged(parts: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}
