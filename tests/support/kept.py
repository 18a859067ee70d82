"""Whether anything still holds something that has ended.

What ends (a call, a session, a client) is listed in several tables, and each has to let go of it. A test that names the
tables does not notice the one that is added later. So `paths_to` looks through all of them: through the attributes and
the collections of our own objects, and through nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from typing import Any, cast

_MOST_STEPS = 100_000
# What is of `protocol` are values, and large: catalogues, indexes, configurations. Only an address names who has ended.
_LOOKED_THROUGH = (
    "greenroom.actors",
    "greenroom.gateway",
    "greenroom.protocol.address",
    "greenroom.supervisor",
)


def paths_to(what: object, *roots: object, without: tuple[object, ...] = ()) -> list[str]:
    """The ways from `roots` to `what` (the very object, or an equal text, number or bytes), each as it would be written
    in code. `without`: objects through which no way counts."""
    seen = {id(each) for each in without}
    ahead: deque[tuple[str, object]] = deque((type(root).__name__, root) for root in roots)
    found: list[str] = []
    for _ in range(_MOST_STEPS):
        if not ahead:
            return found
        path, at = ahead.popleft()
        if at is what or (isinstance(what, str | bytes | int) and type(at) is type(what) and at == what):
            found.append(path)
        elif id(at) not in seen:
            seen.add(id(at))
            ahead += ((f"{path}{step}", each) for step, each in _within(at))
    raise AssertionError(f"more than {_MOST_STEPS} objects: name what must not be looked through")


def _within(at: object) -> Iterator[tuple[str, object]]:
    if isinstance(at, Mapping):
        for key, value in tuple(cast("Mapping[object, object]", at).items()):
            yield " key", key
            yield f"[{str(key)[:30]}]", value
    elif isinstance(at, list | tuple | deque | Set):
        for each in tuple(cast("Any", at)):
            yield "[…]", each
    elif type(at).__module__.startswith(_LOOKED_THROUGH):
        names = {name for kind in type(at).__mro__ for name in getattr(kind, "__slots__", ())}
        for name in {*getattr(at, "__dict__", ()), *names}:
            with suppress(AttributeError):  # a cached property is not made for this
                yield f".{name}", object.__getattribute__(at, name)
