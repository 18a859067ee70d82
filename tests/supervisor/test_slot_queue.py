"""The queue for a slot, against a list that is read from its beginning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.profiles import examples

from greenroom.supervisor.slot_queue import SlotQueue

GROUPS = st.sampled_from([None, "a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("comes"), GROUPS),
    st.tuples(st.just("comes"), GROUPS),
    st.tuples(st.just("leaves"), st.integers(0, 20)),
    st.tuples(st.just("is served"), st.none()),
    st.tuples(st.sampled_from(["closes", "opens"]), st.sampled_from(["a", "b", "c"])),
)


@examples(300)
@given(st.lists(STEPS, max_size=60))
def test_the_first_in_an_open_line_is_found_whatever_came_left_and_closed(
    steps: list[tuple[str, object]],
) -> None:
    queue, waiting, closed = SlotQueue[int](), dict[int, str | None](), set[str]()
    for number, (what, which) in enumerate(steps):
        if what == "comes":
            group = which if isinstance(which, str) else None
            waiting[number] = group
            queue.add(number, number, group)
        elif what == "leaves" and isinstance(which, int):
            queue.discard(which, waiting.pop(which, None))
        elif what == "is served" and (first := queue.first()) is not None:
            queue.discard(first, waiting.pop(first))
        elif what == "closes" and isinstance(which, str):
            closed.add(which)
            queue.close(which)
        elif what == "opens" and isinstance(which, str):
            closed.discard(which)
            queue.reopen(which)
        may = [who for who, group in waiting.items() if group not in closed]
        assert (queue.first(), queue.open) == (min(may, default=None), len(may))
