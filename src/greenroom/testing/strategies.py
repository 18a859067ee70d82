"""Configurations, drawn from the tables by which the parser reads them.

Each key is drawn from its schema, and for the servers that it has an effect on. Keys that contradict each other are
corrected, not filtered out: an eager or keep-alive server becomes a shared one, and there are enough slots for all
keep-alive servers.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from hypothesis import strategies as st

from ..config.keys import Key, grouped
from ..config.model import SERVER_KEY, SERVER_KEYS, SETTING_KEYS, SHORTEST_NAME
from ..config.parse import OF_API, OF_DOCUMENT, OF_MCP, WHERE, WITH_COMMAND, WITH_URL
from ..protocol.fault_plan import DEEDS, SIGNALS, STEPS
from ..protocol.fault_scripts import Fault, FaultScript
from ..protocol.lifecycle import TABLE, Cause, Effect, Ending, Life, State, Trigger, settle, step

_LEAST: Final = 0.001  # below it a number of a file's units may round to nothing
_URLS: Final = st.sampled_from(["http://127.0.0.1:9/mcp", "https://example.org/mcp"])
_NOT_DRAWN: Final = frozenset(
    {*WHERE, "isolation", "lifecycle", "reset", "warm"}
)  # drawn by rules of their own


def _own_rules() -> Mapping[str, st.SearchStrategy[Any]]:
    """Keys whose objects have names of their own, drawn with a few of these."""
    login = st.fixed_dictionaries({}, optional={"scope": WORDS, "clientId": WORDS, "clientName": WORDS})
    shown = st.fixed_dictionaries({}, optional={"description": WORDS, "hide": st.booleans()})
    return {"oauth": st.just(False) | login, "toolOverrides": st.dictionaries(WORDS, shown, max_size=3)}


def server_names() -> st.SearchStrategy[str]:
    """Names of servers. Many differ only by hyphens and underscores, and some have unusual characters."""
    tricky = st.sampled_from(["git-hub", "git_hub", "x-mcp", "mcp", "a b", "ü", "a" * 70])
    return st.text("ab-_", min_size=1, max_size=3) | tricky


def server_entries() -> st.SearchStrategy[dict[str, Any]]:
    """Entries of `mcpServers` that are read without a warning: a command, a URL or a socket, or an HTTP API at a URL,
    with any keys that it may have. No such server exists, so connect them with `fake_connectors`."""
    return st.one_of(
        _entries({"command": WORDS}, without=WITH_URL),
        _entries({"url": _URLS}, WITH_COMMAND | OF_API),
        _entries({"url": _URLS, "openapi": WORDS}, WITH_COMMAND.union(OF_MCP)),
        _entries(
            {"url": _URLS, "http": _of_key("http")}, WITH_COMMAND.union(OF_MCP, OF_DOCUMENT, ["openapi"])
        ),
        _entries({"socket": WORDS}, WITH_COMMAND | WITH_URL),
    )


def configs(*, servers: int = 4) -> st.SearchStrategy[dict[str, Any]]:
    """Configurations for `Greenroom.open`, as a dict, that are read without a warning, with at most that many
    servers."""
    return st.builds(
        _fitted,
        st.dictionaries(server_names(), server_entries(), max_size=servers),
        st.fixed_dictionaries({}, optional=_setting_values()),
    )


def _entries(
    where: Mapping[str, st.SearchStrategy[Any]], without: Iterable[str]
) -> st.SearchStrategy[dict[str, Any]]:
    left_out = _NOT_DRAWN.union(without, where)
    others = {key.name: _of_key(key.name) for key in SERVER_KEYS if key.name not in left_out}
    others |= {name: values for name, values in _own_rules().items() if name in others}
    drawn = st.fixed_dictionaries(dict(where), optional=others)
    return together(drawn, _keeping(is_program="command" in where)).map(_without_useless_idle_time)


def _of_key(name: str) -> st.SearchStrategy[Any]:
    return _of_schema(SERVER_KEY[name].kind.schema)


def _without_useless_idle_time(entry: dict[str, Any]) -> dict[str, Any]:
    """A keep-alive server has no idle time, because one would cause a warning."""
    if entry.get("lifecycle") != "keep-alive":
        return entry
    return {name: value for name, value in entry.items() if name != "idleTimeout"}


def _keeping(*, is_program: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Draw `lifecycle`, `isolation`, `warm` and `reset`: an eager or keep-alive server is shared by all, unless
    children of it are started ahead. Only those of a program are (`is_program`) that has a child per session or
    call."""
    shared = st.fixed_dictionaries({}, optional={"isolation": st.just("persistent")})
    early = st.fixed_dictionaries({"lifecycle": st.sampled_from(["eager", "keep-alive"])})
    lazy = st.fixed_dictionaries(
        {},
        optional={
            "lifecycle": st.just("lazy"),
            "isolation": st.sampled_from(["persistent", "per_session", "per_call"]),
        },
    )
    warm = st.fixed_dictionaries(
        {"warm": st.integers(1, 9), "isolation": st.sampled_from(["per_session", "per_call"])},
        optional={"lifecycle": st.sampled_from(["lazy", "eager"]), "reset": _of_key("reset")},
    )
    return lazy | together(early, shared) | warm if is_program else lazy | together(early, shared)


def _setting_values() -> dict[str, st.SearchStrategy[Any]]:
    values = {name: _of_group(one) for name, one in grouped((key.name, key) for key in SETTING_KEYS).items()}
    backoff = st.tuples(_number({"exclusiveMinimum": 0}), _number({"exclusiveMinimum": 0})).map(sorted)
    ranges = {"restartBackoff": backoff.map(lambda pair: {"minMs": pair[0], "maxMs": pair[1]})}
    return {**values, **ranges, "toolOverrides": _own_rules()["toolOverrides"]}


def _of_group(one: Key | dict[str, Any]) -> st.SearchStrategy[Any]:
    if isinstance(one, Key):
        return _of_schema(one.kind.schema)
    return st.fixed_dictionaries({}, optional={name: _of_group(part) for name, part in one.items()})


def _fitted(servers: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Raise `maxConnections` if the keep-alive servers and the minimum need more slots than that, and `nameLimit` if
    `clientPrefix` leaves too little of it."""
    kept = sum(
        entry.get("lifecycle") == "keep-alive" and not entry.get("disabled") for entry in servers.values()
    )
    least = max(kept, settings.get("minConnections", 0)) + 1
    if settings.get("maxConnections", 20) < least:
        settings = {**settings, "maxConnections": least}
    if "clientPrefix" in settings:
        shortest = len(settings["clientPrefix"]) + SHORTEST_NAME
        settings = {**settings, "nameLimit": max(settings.get("nameLimit", 64), shortest)}
    return {"mcpServers": servers, **({"settings": settings} if settings else {})}


def _of_schema(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """The values that the schema of a key allows."""
    match schema:
        case {"anyOf": options}:
            return st.one_of(*map(_of_schema, options))
        case {"enum": words}:
            return st.sampled_from(list(words))
        case {"type": "null"}:
            return st.none()
        case {"pattern": pattern} if re.search(pattern, "word"):
            return WORDS.filter(lambda word: re.search(pattern, word) is not None)
        case {"pattern": pattern}:
            return st.from_regex(pattern, alphabet=string.printable[:95], fullmatch=True)
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "array"}:
            return st.lists(_of_schema(schema.get("items", {})), max_size=3)
        case {"type": "object", "properties": properties, "required": required}:
            parts = {name: _of_schema(part) for name, part in properties.items()}
            return st.fixed_dictionaries(
                {name: parts.pop(name) for name in required},
                optional=parts,
            )
        case {"type": "object"}:
            names = st.text(string.ascii_uppercase, min_size=1, max_size=6)
            # Where nothing is said of what is in it, any text will do.
            others = schema.get("additionalProperties", {"type": "string"})
            return st.dictionaries(names, _of_schema(others), max_size=3)
        case {"multipleOf": 1, "minimum": least, "maximum": most}:
            return st.integers(least, min(most, least + 1_000_000))
        case {"type": "number"}:
            return _number(schema)
        case _:
            return WORDS


def _number(schema: Mapping[str, Any]) -> st.SearchStrategy[float]:
    most = min(schema.get("maximum", 1e9), 1e9)
    least = 0 if "minimum" in schema else 1
    whole = st.just(least) | st.integers(least, int(most)) if most >= least else st.nothing()
    return whole | st.floats(_LEAST, most, allow_nan=False)


# ---- Fault scripts, drawn from the tables by which they are checked, so that none is refused ------------------------


def fault_scripts(
    *,
    faults: int = 4,
    steps: Sequence[str] = tuple(STEPS),
    deeds: Sequence[str] = tuple(DEEDS),
    longest: float = 60.0,
) -> st.SearchStrategy[FaultScript]:
    """Scripts of at most that many faults, each of these deeds at one of these steps; no pause above `longest` seconds.

    For the executable leave out `expire` and `crash_before`, which a process cannot play.
    """
    each = [_fault(at, do, longest) for do in deeds for at in DEEDS[do].steps if at in steps]
    return st.lists(st.one_of(each), max_size=faults).map(_script)


def _script(faults: list[Fault]) -> FaultScript:
    return FaultScript(tuple(faults))


def _fault(at: str, do: str, longest: float) -> st.SearchStrategy[Fault]:
    parameters = _parameters(longest)
    deed = DEEDS[do]
    needed = {name: parameters[name] for name in deed.needs}
    optional = {
        name: parameters[name] for name in deed.takes if name not in ("exit_code", "signal", "stderr")
    }
    if do.startswith("crash"):
        how = st.fixed_dictionaries({}, optional={"exit_code": parameters["exit_code"]})
        extra = how | st.fixed_dictionaries({"signal": parameters["signal"]})
    elif do == "flood":
        extra = st.fixed_dictionaries({"stderr": parameters["stderr"]})
    else:
        extra = st.just(dict[str, Any]())
    what = st.fixed_dictionaries({"at": st.just(at), "do": st.just(do), **needed}, optional=optional)
    return together(_selection(at, longest), what, extra).map(_made)


def _made(said: dict[str, Any]) -> Fault:
    return Fault(**said)


def _selection(at: str, longest: float) -> st.SearchStrategy[dict[str, Any]]:
    few = st.integers(1, 3)
    optional: dict[str, st.SearchStrategy[Any]] = {"start": few}
    if at not in ("start", "stop"):
        optional["nth"] = few
    if at == "call":
        optional["tool"] = st.just("echo")
    needed = {"after": _pauses(longest)} if at == "idle" else {}
    return st.fixed_dictionaries(needed, optional=optional)


def _parameters(longest: float) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "seconds": _pauses(longest),
        "exit_code": st.integers(0, 255),
        "signal": st.sampled_from(SIGNALS),
        "text": WORDS,
        "code": st.integers(-32_768, -32_000),
        "notifications": st.integers(0, 200),
        "stderr": st.integers(0, 100_000),
        "tools": st.lists(tool_names(), max_size=3, unique=True).map(lambda names: ["echo", *names]),
    }


def _pauses(longest: float) -> st.SearchStrategy[float]:
    """Round ones first: they are the ones that fall on one moment with something else."""
    return st.sampled_from(
        [each for each in (0.0, 0.1, 1.0, 5.0, 30.0, 60.0) if each <= longest]
    ) | st.floats(0, longest, allow_nan=False)


# ---- Histories of one incarnation, drawn by walking through the lifecycle table -------------------------------------


@attrs.frozen
class Occurrence:
    """One thing that happens to an incarnation, with what `lifecycle.step` wants to know of it.

    `trigger` None: the last call in flight has ended (`lifecycle.settle`).
    """

    trigger: Trigger | None
    ending: Ending | None = None
    deadline: float | None = None
    in_flight: int = 0

    def apply(self, life: Life) -> tuple[Life, tuple[Effect, ...]]:
        """The next life, and what has to be done. Raises `IllegalTransition`."""
        if self.trigger is None:
            return settle(life)
        return step(life, self.trigger, ending=self.ending, deadline=self.deadline, in_flight=self.in_flight)


def lifecycle_events(*, most: int = 12) -> st.SearchStrategy[list[Occurrence]]:
    """What may happen to one incarnation from its beginning, each event one that the table has there.

    `most`: how many at most; they are fewer when it is closed before.
    """
    return _walks(most)


_ENDINGS: Final = st.sampled_from(Cause).map(Ending)
_DEADLINES: Final = st.integers(0, 60).map(float)
_IN_FLIGHT: Final = st.integers(0, 3)
_CHOICES: Final = {count: st.integers(0, count - 1) for count in range(1, len(Trigger) + 1)}
_END_IT: Final = frozenset({Trigger.FAILED, Trigger.DRAIN, Trigger.STOP, Trigger.LOST})


@st.composite
def _walks(draw: st.DrawFn, most: int) -> list[Occurrence]:
    life, walk = Life(), list[Occurrence]()
    for _ in range(draw(st.integers(0, most))):
        choices = _possible(life)
        if not choices:
            break
        walk.append(_drawn(draw, choices[draw(_CHOICES[len(choices)])], life))
        life, _ = walk[-1].apply(life)
    return walk


def _possible(life: Life) -> list[Trigger | None]:
    """`gone` is told of a tree that was stopped, and a deadline passes of one that was not."""
    row: list[Trigger | None] = list(TABLE[life.state])
    if life.state is not State.DRAINING:
        return row
    left_out = Trigger.DEADLINE if life.stopping else Trigger.GONE
    settles: list[Trigger | None] = [] if life.stopping else [None]
    return [trigger for trigger in row if trigger is not left_out] + settles


def _drawn(draw: st.DrawFn, trigger: Trigger | None, life: Life) -> Occurrence:
    is_busy = life.state in (State.CONNECTED, State.DRAINING) and not life.stopping
    return Occurrence(
        trigger,
        ending=draw(_ENDINGS) if trigger in _END_IT else None,
        deadline=draw(_DEADLINES) if trigger is Trigger.DRAIN else None,
        in_flight=draw(_IN_FLIGHT) if is_busy and trigger not in (None, Trigger.GONE) else 0,
    )


# ---- What the strategies are put together from ----------------------------------------------------------------------

WORDS: Final = st.text(string.ascii_lowercase + string.digits + "-_./", min_size=1, max_size=8)
SAYABLE: Final = st.characters(exclude_categories=["Cs"])  # half a surrogate pair is no JSON


def together(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """One object with the keys of all."""
    return st.tuples(*parts).map(_merged)


def _merged(parts: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


# ---- Names of tools, and results, as servers may send them ----------------------------------------------------------


def tool_names() -> st.SearchStrategy[str]:
    """Names a server may give its tools, which is anything at all: close to each other, too long, of any script."""
    tricky = ["get-user", "get_user", "mcp", "a" * 64, "b" * 200, "a.b/c", "Ünïcode", "🎭", " ", "__proto__"]
    return (
        st.text("ab-_", min_size=1, max_size=6)
        | st.sampled_from(tricky)
        | st.text(SAYABLE, min_size=1, max_size=80)
    )


def tool_results() -> st.SearchStrategy[dict[str, Any]]:
    """Results of `tools/call`, as a server says them: any blocks, perhaps structured, perhaps an error."""
    return st.fixed_dictionaries(
        {"content": st.lists(_blocks(), max_size=4)},
        optional={
            "structuredContent": st.dictionaries(st.text(SAYABLE, max_size=6), _json(), max_size=3),
            "isError": st.booleans(),
            "x-vendor": _json(),
        },
    )


def _blocks() -> st.SearchStrategy[dict[str, Any]]:
    text, data = st.text(SAYABLE, max_size=40), st.sampled_from(["", "aGVsbG8="])
    uri, name = st.sampled_from(["note://one", "file:///a%20b"]), st.text(SAYABLE, min_size=1, max_size=10)
    return st.one_of(
        _block("text", text=text),
        _block("image", data=data, mimeType=st.just("image/png")),
        _block("audio", data=data, mimeType=st.just("audio/wav")),
        _block("resource_link", uri=uri, name=name),
        _block("resource", resource=st.fixed_dictionaries({"uri": uri, "text": text})),
        _block("resource", resource=st.fixed_dictionaries({"uri": uri, "blob": data})),
    )


def _block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


def _json() -> st.SearchStrategy[Any]:
    plain = (
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
    )
    return st.recursive(
        plain | st.text(SAYABLE, max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(SAYABLE, max_size=5), inner, max_size=3)
        ),
        max_leaves=5,
    )
