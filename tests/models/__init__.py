"""The policies a second time: naive, slow, and written from the design's sentences alone.

Each model is what a reader of the design would do with pencil and paper: keep everything that ever happened, and look
through it. It shares no code with the policy it is held against, so a mistake has to be made twice to pass.
"""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def histories(events: st.SearchStrategy[T], *, longest: int = 60) -> st.SearchStrategy[list[T]]:
    """Sequences of events: short ones, to which a failure shrinks, and long ones, in which much happens."""
    return st.lists(events, max_size=10) | st.lists(events, min_size=longest // 2, max_size=longest)
