"""Playing a fault script: which faults are due, and what the player then does.

The fake servers use this, the one in memory and the executable, and so does a tape that is replayed: a script means the
same to all. Nothing here
waits: `perform` is a generator that yields how many seconds to wait before it goes on. One player sleeps, the other
puts the time on its heap. A `Player` has one method for each thing that can go wrong, because that differs: a crash is
the end of a process in one, and a lost connection in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

# ---- The words of a fault script: the steps, what can go wrong at each, and the fields that it takes ----------------
#
# Everything is in two tables: `STEPS` and `DEEDS`. The check, the documentation and the Hypothesis strategies are made
# from them, so a new word has to be added only here. A fault is flat, and the same in Python and in JSON: `{"at":
# "call", "do": "crash", "exit_code": 3, "start": 1, "nth": 2}`. Few words are enough, because faults of one step are
# played one after the other: a crash in the middle of a call is a delay and then a crash, and a slow end is a delay at
# `stop`.
#
# Only the standard library is imported, because the executable fake server reads this too and must start quickly.

REQUESTS: Final = ("initialize", "list", "call", "ping")
STEP_OF: Final[Mapping[str, str]] = {
    "initialize": "initialize",
    "tools/list": "list",
    "tools/call": "call",
    "ping": "ping",
}
RUNNING: Final = (*REQUESTS, "idle")
ALIVE: Final = ("start", *RUNNING)
STEPS: Final[Mapping[str, str]] = {
    "start": "the server has been started, and has read nothing yet",
    "initialize": "`initialize` has arrived",
    "list": "`tools/list` has arrived",
    "call": "`tools/call` has arrived; with `tool`, one of that tool",
    "ping": "`ping` has arrived",
    "idle": "nothing has arrived or been answered for `after` seconds",
    "stop": "it has been asked to end: its stdin is closed",
}


class Deed(NamedTuple):
    """One thing that can go wrong: the steps at which it may be used, the fields that it needs, and those that it may
    have."""

    steps: tuple[str, ...]
    meaning: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    elsewhere: str = ""  # what to write instead at another step


DEEDS: Final[Mapping[str, Deed]] = {
    "delay": Deed(
        ("start", *REQUESTS, "stop"),
        "wait, then go on; other requests are answered meanwhile (at `start` none is)",
        needs=("seconds",),
        elsewhere='a longer "after"',
    ),
    "hang": Deed(
        (*ALIVE, "stop"),
        "answer nothing any more, and stay; at `stop` only SIGKILL ends it",
    ),
    "crash": Deed(
        ALIVE,
        "end at once, with an exit code (default 1) or by a signal, after writing `text` to stderr",
        takes=("exit_code", "signal", "text"),
        elsewhere='"delay" or "hang": an end that was asked for is not a crash',
    ),
    "crash_before": Deed(
        ("list", "call", "ping"),
        "crash before the request has been sent: it has not run",
        takes=("exit_code", "signal", "text"),
        elsewhere='"crash": nothing was to be sent',
    ),
    "refuse": Deed(
        REQUESTS,
        "answer with a JSON-RPC error",
        needs=("text",),
        takes=("code",),
        elsewhere='"crash", with its reason as "text": there is no request to refuse',
    ),
    "garbage": Deed(
        ALIVE,
        "write a junk line, a line that is not UTF-8 and an answer to no request, then go on",
        elsewhere='"delay" or "hang": nobody listens any more',
    ),
    "flood": Deed(
        ALIVE,
        "send that many notifications, write that many bytes to stderr, then go on",
        takes=("notifications", "stderr"),
        elsewhere='"delay" or "hang": nobody listens any more',
    ),
    "list_changed": Deed(
        RUNNING,
        "have these tools from now on, send `list_changed`, then go on",
        needs=("tools",),
        elsewhere='the step "initialize": only a server that runs has tools',
    ),
    "expire": Deed(
        ("list", "call", "ping", "idle"),
        "forget the session, like HTTP 404: the request has not run, and no later one is served",
        elsewhere='the step "list": before it there is no session',
    ),
    "answer_twice": Deed(REQUESTS, "answer twice", elsewhere='"garbage": nothing was asked'),
    "answer_late": Deed(
        ("list", "call", "ping"),
        "answer only when the request has been cancelled",
        elsewhere='"drop_answer": `initialize` is never cancelled, and elsewhere nothing is asked',
    ),
    "drop_answer": Deed(
        REQUESTS, "never answer this request; others are served", elsewhere='"hang": nothing was asked'
    ),
}
SELECTORS: Final = ("start", "nth", "tool", "after")
SIGNALS: Final = ("SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV")


class _FieldKind(NamedTuple):
    fits: Callable[[Any], bool]
    words: str


def _is_signal(value: Any) -> bool:
    return value in SIGNALS


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1e9


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, list(value)))  # pyright: ignore[reportUnknownArgumentType]


_COUNT: Final = _FieldKind(_whole(0, 10**9), "a whole number from 0")
_ORDINAL: Final = _FieldKind(_whole(1, 10**9), "a whole number from 1 (leave it out for: each time)")
VALUES: Final[Mapping[str, _FieldKind]] = {
    "start": _ORDINAL,
    "nth": _ORDINAL,
    "tool": _FieldKind(_is_text, "the name of a tool"),
    "after": _FieldKind(_is_time, "seconds, a number from 0"),
    "seconds": _FieldKind(_is_time, 'seconds, a number from 0 (for ever: "do": "hang" or "drop_answer")'),
    "exit_code": _FieldKind(_whole(0, 255), "a whole number from 0 to 255"),
    "signal": _FieldKind(_is_signal, f"one of {', '.join(SIGNALS)}"),
    "text": _FieldKind(_is_text, "a text"),
    "code": _FieldKind(_whole(-(2**31), 2**31), "a whole number, as -32603"),
    "notifications": _COUNT,
    "stderr": _COUNT,
    "tools": _FieldKind(_are_names, 'a list of names, as ["echo", "new"]'),
}


class FaultEntry(NamedTuple):
    """A fault in the form that players read. Fields that were not given are None."""

    at: str
    do: str
    start: int | None = None
    nth: int | None = None
    tool: str | None = None
    after: float | None = None
    seconds: float | None = None
    exit_code: int | None = None
    signal: str | None = None
    text: str | None = None
    code: int | None = None
    notifications: int | None = None
    stderr: int | None = None
    tools: Sequence[str] | None = None

    def said(self) -> dict[str, Any]:
        """The fault as an object, with only the fields that were given."""
        return {name: value for name, value in self._asdict().items() if value is not None}


FIELDS: Final = FaultEntry._fields


def problem_with(fault: Any) -> str | None:
    """What is wrong with a fault, written as an object, and what to write instead; None when it can be played."""
    if not isinstance(fault, Mapping):
        return 'a fault is an object like {"at": "call", "do": "crash"}'
    given: dict[str, Any] = {str(key): value for key, value in fault.items() if value is not None}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return next(_problems(given), None)


def _problems(given: Mapping[str, Any]) -> Iterator[str]:
    for key, known in (("at", STEPS), ("do", DEEDS)):
        if not isinstance(given.get(key), str) or given[key] not in known:
            yield _no_word(key, given.get(key), known)
            return
    for key in [key for key in given if key not in FIELDS]:
        yield f'unknown key "{key}"{_close(key, FIELDS)}'
    step, deed = given["at"], DEEDS[given["do"]]
    if step not in deed.steps:
        yield f'"{given["do"]}" means nothing at "{step}": write {deed.elsewhere}'
    yield from _selection_problems(step, given)
    yield from _parameter_problems(deed, given)
    for key in [key for key in VALUES if key in given]:
        if not VALUES[key].fits(given[key]):
            yield f'"{key}" must be {VALUES[key].words}'


def _selection_problems(step: str, given: Mapping[str, Any]) -> Iterable[str]:
    if "tool" in given and step != "call":
        yield f'"tool" chooses among calls: leave it out at "{step}"'
    if ("after" in given) != (step == "idle"):
        wanted = 'write for how long, as "after": 5' if step == "idle" else 'put a "delay" in front instead'
        yield f'"after" belongs to the step "idle", and only there: {wanted}'
    if "nth" in given and step in ("start", "stop"):
        yield f'"{step}" comes once a start: leave out "nth", and say which "start"'


def _parameter_problems(deed: Deed, given: Mapping[str, Any]) -> Iterable[str]:
    for key in deed.needs:
        if key not in given:
            yield f'"{given["do"]}" needs "{key}": {VALUES[key].words}'
    fitting = {"at", "do", *SELECTORS, *deed.needs, *deed.takes}
    for key in [key for key in FIELDS if key in given and key not in fitting]:
        yield f'"{given["do"]}" takes no "{key}": leave it out'
    if "exit_code" in given and "signal" in given:
        yield 'a process ends by "exit_code" or by "signal": leave out one of them'
    if given["do"] == "flood" and not given.keys() & {"notifications", "stderr"}:
        yield '"flood" needs "notifications" (how many) or "stderr" (how many bytes)'


def _no_word(key: str, word: Any, known: Iterable[str]) -> str:
    if word is None:
        return f'a fault needs "{key}", one of {", ".join(known)}'
    return f'"{key}": {word!r} is none of {", ".join(known)}{_close(str(word), known)}'


def _close(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(word, list(known), n=1)
    return f'; did you mean "{found[0]}"?' if found else ""


class FaultPlan:
    """The faults of one start of a server; starts are counted from 1. `nth` of a fault counts within the start, and
    only what the fault is about: calls of its tool, or idle times of its length."""

    def __init__(self, faults: Iterable[FaultEntry], start: int) -> None:
        self._faults = [fault for fault in faults if fault.start in (None, start)]
        self._met = [0] * len(self._faults)

    def due(self, step: str, tool: str | None = None) -> list[FaultEntry]:
        """The faults to play now, at this step, in the order of the script."""
        return [
            fault
            for index, fault in enumerate(self._faults)
            if fault.at == step and fault.tool in (None, tool) and self._is_its_turn(index)
        ]

    def due_idle(self, after: float) -> list[FaultEntry]:
        """The faults to play now, when it has been idle for exactly `after` seconds."""
        return [
            fault
            for index, fault in enumerate(self._faults)
            if fault.at == "idle" and fault.after == after and self._is_its_turn(index)
        ]

    def idle_times(self) -> Sequence[float]:
        """The idle times, in seconds and ascending, after which a fault may be due."""
        return sorted({fault.after or 0.0 for fault in self._faults if fault.at == "idle"})

    def _is_its_turn(self, index: int) -> bool:
        self._met[index] += 1
        return self._faults[index].nth in (None, self._met[index])


class Player(Protocol):
    """The things that a fake server can do wrong: one in this process (`tape.fault_player`), or a process of its own
    (`testing.servers.scripted`)."""

    @property
    def is_over(self) -> bool: ...

    def note_fault(self, fault: FaultEntry) -> None: ...

    def talk_junk(self) -> None: ...

    def flood(self, notifications: int, stderr: int) -> None: ...

    def change_tools(self, names: Sequence[str]) -> None: ...

    def hang(self) -> None: ...

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None: ...

    def expire(self) -> None: ...


def perform(faults: Iterable[FaultEntry], player: Player) -> Generator[float, None, FaultEntry | None]:
    """Play faults one after the other. Yields the seconds to wait. Returns the fault that decides the answer to the
    step: `refuse`, `answer_twice`, `answer_late`, `crash_before`, or any other for no answer. Returns None for a normal
    answer."""
    decided: FaultEntry | None = None
    for fault in faults:
        if player.is_over:
            return fault
        player.note_fault(fault)
        if fault.do == "delay":
            yield fault.seconds or 0.0
        elif fault.do == "answer_twice":
            decided = fault
        elif not _goes_on(fault, player):
            return fault
    return decided


def _goes_on(fault: FaultEntry, player: Player) -> bool:
    """Play one fault. Returns False when no further fault is played at this step."""
    match fault.do:
        case "garbage":
            player.talk_junk()
        case "flood":
            player.flood(fault.notifications or 0, fault.stderr or 0)
        case "list_changed":
            player.change_tools(fault.tools or ())
        case "hang":
            player.hang()
            return False
        case "crash":
            player.crash(1 if fault.exit_code is None else fault.exit_code, fault.signal, fault.text)
            return False
        case "expire":
            player.expire()
            return False
        case _:  # refuse, answer_late, drop_answer, crash_before: they only decide the answer
            return False
    return True
