"""Whether anything still holds something that has ended.

What ends (a call, a session, a client) is listed in several tables, and each has to let go of it. A test that names the
tables does not notice the one that is added later. So `paths_to` looks through all of them: through the attributes and
the collections of our own objects, and through nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from functools import cache
from typing import Any, cast

_MOST_STEPS = 100_000
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
# What is of `protocol` are values, and large: catalogues, indexes, configurations. Only an address names who has ended.
_LOOKED_THROUGH = (
    "greenroom.actors",
    "greenroom.gateway",
    "greenroom.protocol.address",
    "greenroom.supervisor",
)


def paths_to(*wanted: object, within: tuple[object, ...], without: tuple[object, ...] = ()) -> list[str]:
    """The ways from `within` to one of the `wanted` (the very object, or an equal text or bytes), each as it would be
    written in code. `without`: objects through which no way counts."""
    same = {id(each) for each in wanted}
    equal = frozenset(each for each in wanted if isinstance(each, str | bytes))
    seen = {id(each) for each in without}
    steps: list[tuple[int, str, object]] = [(-1, type(root).__name__, root) for root in within]
    found: list[str] = []
    for at, (_, _, each) in enumerate(steps):  # grows meanwhile
        kind = type(each)
        if id(each) in same or ((kind is str or kind is bytes) and each in equal):
            found.append(_way(steps, at))
        elif kind not in _PLAIN and id(each) not in seen:
            seen.add(id(each))
            steps += [(at, step, inside) for step, inside in _within(each)]
        if len(steps) > _MOST_STEPS:
            raise AssertionError(f"more than {_MOST_STEPS} objects: name what must not be looked through")
    return found


def _way(steps: list[tuple[int, str, object]], at: int) -> str:
    said: list[str] = []
    while at >= 0:
        at, step, _ = steps[at]
        said.append(step)
    return "".join(reversed(said))


def _within(at: object) -> Iterator[tuple[str, object]]:
    if isinstance(at, Mapping):
        for key, value in tuple(cast("Mapping[object, object]", at).items()):
            yield " key", key
            yield f"[{str(key)[:30]}]" if isinstance(key, str) else "[…]", value
    elif isinstance(at, list | tuple | deque | Set):
        for each in tuple(cast("Any", at)):
            yield "[…]", each
    else:
        for name in _slots(type(at)):
            with suppress(AttributeError):  # a cached property is not made for this
                yield f".{name}", object.__getattribute__(at, name)
        if _slots(type(at)) or _is_ours(type(at)):
            for name, value in tuple(getattr(at, "__dict__", {}).items()):
                yield f".{name}", value


@cache
def _slots(kind: type) -> tuple[str, ...]:
    if not _is_ours(kind):
        return ()
    return tuple({name for each in kind.__mro__ for name in getattr(each, "__slots__", ())} - {"__weakref__"})


@cache
def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(_LOOKED_THROUGH)
