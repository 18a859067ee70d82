"""What if a server on a tape had gone wrong: faults of fault scripts (`protocol.fault_plan`), at places of a tape.

    github call 7: crash after sent
    github call tool=create_issue nth=2: delay seconds=90
    github start 1: crash text="no memory"

A line says the server, the step and what happens there, in the words of fault scripts; an underscore may be a space.
`call 7` is the recorded call of that number, as the story of the tape says it: the fault happens when somebody makes
that call for the first time. Rejected: the seventh call that comes. An agent that makes its calls at once makes another
one the seventh in each run. Who wants it says `nth=7`, which counts within a start, as in a script.

What a fault keeps from being answered is not taken from the tape, so a call that is made once more gets the recorded
answer: as if only the second attempt had come through.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn

import attrs
import msgspec

from ..protocol.errors import UsageError
from ..protocol.fault_plan import DEEDS, STEPS, VALUES, FaultEntry, FaultPlan, problem_with
from ..protocol.fault_scripts import Fault
from ..protocol.json_values import is_object
from ..protocol.near_names import meant
from .tape_reader import Tape

_PHRASES: Final = {"crash before sent": "crash_before", "crash after sent": "crash"}
_UNANSWERED_THOUGH_IT_RAN: Final = frozenset({"crash", "hang", "drop_answer", "answer_late"})
_REST: Final = rf"(?P<step>{'|'.join(STEPS)})\b(?P<where>[^:]*):(?P<what>.*)"
_LINE: Final = re.compile(rf"(?P<server>.+?)\s+{_REST}", re.DOTALL)
_SHOWN: Final = 20  # numbers of calls, or names of tools, in a refusal
_EXAMPLE: Final = '"github call 7: crash after sent"'


@attrs.frozen
class TapeFault:
    """A fault of one server. `call`: only at the recorded call of this number, once."""

    text: str
    server: str
    fault: Fault
    call: int | None = None

    @classmethod
    def of(cls, text: str, servers: Collection[str] = ()) -> TapeFault:
        """What this line says. `servers`: those that there are; a name may have a step in it, too. Raises
        `UsageError`."""
        said = text.strip()
        found = next(
            filter(None, (_line_of(said, name) for name in sorted(servers, key=len, reverse=True))), None
        )
        found = found or _LINE.fullmatch(said)
        if found is None:
            steps = ", ".join(STEPS)
            raise UsageError(
                f"{text!r} is not a fault of a tape: write server, step ({steps}) and what happens, as {_EXAMPLE}."
            )
        fields: dict[str, Any] = {"at": found["step"]}
        number = _read_place(text, found["where"], fields)
        _read_deed(text, found["what"], fields)
        if number is not None and fields.keys() & {"start", "nth", "tool"}:
            _refuse(text, f'"call {number}" is one call: leave out start, nth and tool')
        if problem := problem_with(fields):
            _refuse(text, problem)
        return cls(text, found["server"], Fault(**fields), number)

    def __str__(self) -> str:
        return self.text

    def with_own_tool(self, tape: Tape, faults: Sequence[TapeFault]) -> TapeFault:
        """The fault with the server's own name of its tool. It may say the name that an agent calls it by, too."""
        name = self.fault.tool
        if name is None:
            return self
        called: dict[str, str] = {}
        for call in tape.calls_of(self.server):
            if call.method == "tools/call" and is_object(params := call.said):
                own = str(params.get("name"))
                called |= {call.tool or own: own}
        listed = (str(tool.get("name")) for line in tape.listed_of(self.server) for tool in line.tools or ())
        made = (tool for each in faults if each.server == self.server for tool in each.fault.tools or ())
        known = {*called.values(), *listed, *made}
        if name not in known and name not in called:
            names = [*called, *known]
            near = (
                meant(name, names)
                or f" Those of {self.server}: {', '.join(sorted(known)[:_SHOWN]) or 'none'}."
            )
            _refuse(self.text, f'there is no tool "{name}" on the tape.{near}')
        return attrs.evolve(
            self, fault=attrs.evolve(self.fault, tool=name if name in known else called[name])
        )

    def check_call(self, number: int, tape: Tape) -> None:
        servers = {call.server for call in tape.calls if call.n == number}
        if self.server in servers:
            return
        own = [call.n for call in tape.calls_of(self.server)]
        others = (
            f"call {number} is one of {', '.join(sorted(servers))}"
            if servers
            else f"there is no call {number}"
        )
        shown = ", ".join(map(str, own[:_SHOWN])) + (", …" if len(own) > _SHOWN else "")
        _refuse(self.text, f"{others} on the tape; those of {self.server}: {shown or 'none'}")


def _line_of(said: str, server: str) -> re.Match[str] | None:
    """The line, if it is about this server."""
    return re.fullmatch(rf"(?P<server>{re.escape(server)})\s+{_REST}", said, re.DOTALL)


def _read_place(text: str, said: str, fields: dict[str, Any]) -> int | None:
    """The selectors, and the number of a recorded call."""
    number = None
    for word in _words(text, said):
        if word.isdecimal() and fields["at"] in ("call", "start"):
            if fields["at"] == "call":
                number = int(word)
            else:
                fields["start"] = int(word)
        elif "=" in word:
            _read_value(text, word, fields)
        else:
            _refuse(
                text,
                f'{word!r} is not a place: write a number after "call" or "start", or a selector, as nth=3',
            )
    return number


def _read_deed(text: str, said: str, fields: dict[str, Any]) -> None:
    words = _words(text, said)
    deed = " ".join(word for word in words if "=" not in word)
    fields["do"] = _PHRASES.get(deed, deed.replace(" ", "_"))
    if fields["do"] not in DEEDS:
        known = ", ".join(DEEDS)
        _refuse(text, f"{deed!r} is none of {known}.{meant(fields['do'], DEEDS)}")
    for word in words:
        if "=" in word:
            _read_value(text, word, fields)


def _words(text: str, said: str) -> list[str]:
    try:
        return shlex.split(said)
    except ValueError as error:
        _refuse(text, f"{error}")


def _read_value(text: str, word: str, fields: dict[str, Any]) -> None:
    name, _, said = word.partition("=")
    if name not in VALUES:
        _refuse(text, f"unknown key {name!r}.{meant(name, VALUES)}")
    value: Any = said
    if name == "tools" and not said.startswith("["):
        value = said.split(",")
    if not VALUES[name].fits(value):
        try:
            value = msgspec.json.decode(said)
        except msgspec.DecodeError:
            # Of JSON in plain quotes the quotes are gone.
            value = said[1:-1].split(",") if name == "tools" and said.endswith("]") else said
    fields[name] = value


def _refuse(text: str, why: str) -> NoReturn:
    raise UsageError(f"The fault {text!r} cannot be played: {why}")


def faults_of(lines: Iterable[str], tape: Tape) -> tuple[TapeFault, ...]:
    """The faults that these lines say. Raises `UsageError` for one that is not of this tape."""
    faults = tuple(TapeFault.of(line, tape.servers) for line in lines)
    for fault in faults:
        if fault.server not in tape.servers:
            _refuse(
                fault.text, f'the tape has no server "{fault.server}".{meant(fault.server, tape.servers)}'
            )
        if fault.call is not None:
            fault.check_call(fault.call, tape)
    return tuple(fault.with_own_tool(tape, faults) for fault in faults)


class FaultsByStart:
    """The faults of one server over all its starts."""

    def __init__(self, faults: Sequence[TapeFault]) -> None:
        self.unplayed: list[TapeFault] = list(faults)
        self.all = faults
        self._at_calls = [fault for fault in faults if fault.call is not None]
        self._entries = [fault.fault.entry for fault in faults if fault.call is None]

    def begin(self, start: int) -> FaultPlan:
        """The faults of this start that are not of a recorded call."""
        return FaultPlan(self._entries, start)

    def due_at(self, call: int | None) -> Iterator[FaultEntry]:
        """The faults of this recorded call, the first time that somebody makes it."""
        now = [fault for fault in self._at_calls if fault.call == call]
        for fault in now:
            self._at_calls.remove(fault)
            yield fault.fault.entry

    def played(self, entry: FaultEntry) -> TapeFault:
        """This one happens now."""
        found = next(fault for fault in (*self.unplayed, *self.all) if fault.fault.entry == entry)
        if found in self.unplayed:
            self.unplayed.remove(found)
        return found


def played_in_words(fault: object) -> str:
    """What the log says when a fault happens."""
    return f"a fault as told: {fault}"


def has_happened(tape: Tape, fault: str) -> bool:
    """Whether this fault happened while the tape was recorded, of a room over another one."""
    said = played_in_words(fault)
    return any(line.event.get("detail") == said for line in tape.events)


def has_run(due: Iterable[FaultEntry]) -> bool | None:
    """Whether a call with these faults may have run; None: it is answered from the tape."""
    for fault in due:
        if fault.do in _UNANSWERED_THOUGH_IT_RAN:
            return True
        if fault.do in ("refuse", "expire", "crash_before"):
            return False
    return None
