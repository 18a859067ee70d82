"""How often: the texts of `limits` and `loopGuard`, such as `30/min`.

| text | means |
|---|---|
| `30/min` | 30 calls a minute, whoever makes them: all that the pattern fits, together |
| `5/10s` | 5 calls in 10 seconds |
| `600/h burst 20` | 600 calls an hour, of which at most 20 at once |
| `30/min per principal` | 30 a minute for each person or program that calls |
| `30/min per session and tool` | 30 a minute for each tool in each session |

A limit is a bucket of tokens: it holds as many as the number before the slash (or `burst`), is full at first, and is
filled evenly. A text that cannot be read is left out alone and told, and the other limits hold.

Pure. Who counts is `safety.rates`.

Rejected: numbers under names of their own (`{"calls": 30, "seconds": 60}`). Five lines for what everybody writes as
`30/min`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from ..protocol.json_values import is_array, is_object
from .value_kinds import BadValueError, ValueKind, kind_of, wanted

MOST_REPEATS: Final = 100  # that a loop guard may allow: so many times are kept of each call
_SECONDS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_COUNT: Final = "[1-9][0-9]{0,5}"
_TIME: Final = rf" ?/ ?([1-9][0-9]{{0,4}})? ?({'|'.join(_SECONDS)})"
_PART: Final = "(?:principal|session|server|tool)"
_LIMIT: Final = rf"({_COUNT}){_TIME}(?: burst ({_COUNT}))?(?: per ({_PART}(?: and {_PART}){{0,3}}))?"
_GUARD: Final = rf"(?:[1-9][0-9]?|{MOST_REPEATS}){_TIME}"
_LIKE: Final = 'must be like "30/min", "5/10s" or "600/h burst 20 per session and tool"'
_GUARD_LIKE: Final = f'must be like "10/min" (at most {MOST_REPEATS} times), or false'


class Limit(msgspec.Struct, frozen=True):
    """So many calls in `period` seconds. `burst`: the most at once. `per`: for each of which parts it counts anew;
    none: for everybody together."""

    calls: int
    period: float
    burst: int
    per: frozenset[str]


@lru_cache(maxsize=1024)
def limit_of(text: str) -> Limit:
    """What a text says. Raises `BadValueError`."""
    found = re.fullmatch(_LIMIT, text)
    if found is None:
        raise BadValueError(_LIKE)
    calls, number, unit, burst, per = found.groups()
    period = int(number or 1) * _SECONDS[unit]
    return Limit(
        int(calls), period, int(burst or calls), frozenset(per.split(" and ")) if per else frozenset()
    )


def by_pattern(said: Mapping[str, Any] | str | bool) -> Mapping[str, Any]:
    """What a key says, by the pattern of the tools that it is for. A text without a pattern is for all tools."""
    return said if is_object(said) else {"*": said}


def texts_of(said: str | Sequence[str] | bool) -> Sequence[str]:
    """The texts that hold together for one pattern."""
    if isinstance(said, bool):
        return ()
    return (said,) if isinstance(said, str) else said


def _limits(read: Any) -> str | Sequence[str]:
    """One text, or several that all hold."""
    texts = read if is_array(read) else [read]
    for each in texts:
        if not isinstance(each, str):
            raise BadValueError(f"{_LIKE}, is {kind_of(each)}")
        limit_of(each)
    return read


def _guard(read: Any) -> str | bool:
    if read is not False and not (isinstance(read, str) and re.fullmatch(_GUARD, read)):
        raise BadValueError(_GUARD_LIKE)
    return read


_ONE: Final = {"type": "string", "pattern": f"^(?:{_LIMIT})$"}
_OFTEN: Final = {"type": "string", "pattern": f"^(?:{_GUARD})$"}
_OFF: Final = {"type": "boolean", "enum": [False]}
_Limits: TypeAlias = Annotated[
    Mapping[str, Any],
    Meta(extra_json_schema={"additionalProperties": {"anyOf": [_ONE, {"type": "array", "items": _ONE}]}}),
]
_Guards: TypeAlias = Annotated[
    Mapping[str, Any], Meta(extra_json_schema={"additionalProperties": {"anyOf": [_OFTEN, _OFF]}})
]
LIMITS: Final = ValueKind(
    Annotated[
        Annotated[str, Meta(extra_json_schema=_ONE)] | _Limits,
        wanted('an object like {"create_*": "30/min"}, or a text like "30/min"'),
    ],
    "rate / pattern → rates",
    part=_limits,
)
LOOP_GUARD: Final = ValueKind(
    Annotated[
        Annotated[str, Meta(extra_json_schema=_OFTEN)]
        | Annotated[bool, Meta(extra_json_schema=_OFF)]
        | _Guards,
        wanted('a text like "10/min", false, or an object like {"wait_*": false, "*": "10/min"}'),
    ],
    "rate / false / pattern → rate",
    part=_guard,
)
