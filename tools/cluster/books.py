"""What callers and servers of a run wrote down, compared. Everything that must not be is one line."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen
class Life:
    """One process of a server: from its birth to the last that was heard of it."""

    server: str
    pid: int
    born: float
    last: float
    ran: tuple[tuple[str, str], ...]  # call and caller


@attrs.define
class Made:
    """One call, as its caller saw it. `ended` is None when the caller was gone before."""

    call: str
    server: str
    at: float
    ended: float | None = None
    outcome: str = ""
    reach: str = ""
    text: str = ""


@attrs.frozen
class Gap:
    """A time without an answer of a server."""

    server: str
    began: float
    seconds: float


def lives(folder: Path) -> Iterator[Life]:
    for path in sorted(folder.glob("*.log")):
        server, pid = path.name.split(".")[:2]
        lines = list(_lines(path))
        if lines:
            ran = tuple((line["call"], line["who"]) for line in lines if line["what"] == "ran")
            yield Life(server, int(pid), lines[0]["at"], lines[-1]["at"], ran)


def calls(folder: Path) -> dict[str, list[Made]]:
    """The calls of each front's process, by the name of its book."""
    return {path.stem: list(_made(_lines(path))) for path in sorted(folder.glob("*.calls"))}


def _made(lines: Iterable[Mapping[str, Any]]) -> Iterator[Made]:
    made: dict[str, Made] = {}
    for line in lines:
        if line["what"] == "made":
            made[line["call"]] = Made(line["call"], line["server"], line["at"])
        elif line["what"] == "ended":
            call = made[line["call"]]
            if call.ended is not None:
                call.outcome += " twice"
            call.ended, call.outcome, call.reach = line["at"], call.outcome or line["outcome"], line["reach"]
            call.text = line.get("text", "")
    return iter(made.values())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().split(b"\n"):
        try:
            yield json.loads(line)
        except ValueError:
            continue  # the last line of a process that was killed


def faults_in(
    lived: Iterable[Life],
    made: Mapping[str, Iterable[Made]],
    servers: Mapping[str, Iterable[str]],
    killed: frozenset[str],
) -> list[str]:
    """What must not be. `killed`: the books of fronts that were killed, whose last calls have no end."""
    lived = list(lived)
    wrong: list[str] = []
    ran = Counter(call for life in lived for call, _ in life.ran)
    for book, of_front in made.items():
        for call in of_front:
            if call.ended is None and book not in killed:
                wrong.append(f"{call.call} to {call.server} has no outcome")
            if "twice" in call.outcome:
                wrong.append(f"{call.call} to {call.server} has two outcomes")
            if call.ended is not None and call.reach == "not_sent" and ran[call.call]:
                wrong.append(f"{call.call} to {call.server} is not_sent ({call.outcome}), and has run")
            if call.outcome == "ok" and not ran[call.call]:
                wrong.append(f"{call.call} to {call.server} was answered, and nobody has run it")
    wrong += [f"{call} has run {times} times" for call, times in ran.items() if times > 1]
    wrong += twice_alive(life for life in lived if life.server in servers["persistent"])
    for life in lived:
        who = {caller for _, caller in life.ran}
        if life.server in servers["per_session"] and len(who) > 1:
            wrong.append(f"a process of {life.server} served {len(who)} sessions: {sorted(who)[:3]}")
        if life.server in servers["per_call"] and len(life.ran) > 1:
            wrong.append(f"a process of {life.server} served {len(life.ran)} calls")
    return wrong


def twice_alive(lived: Iterable[Life]) -> list[str]:
    """The pairs of processes of one server that lived at the same time."""
    of: dict[str, list[Life]] = defaultdict(list)
    for life in lived:
        of[life.server].append(life)
    wrong: list[str] = []
    for server, each in of.items():
        each.sort(key=lambda life: life.born)
        for before, after in itertools.pairwise(each):
            if (both := before.last - after.born) > 0:
                wrong.append(f"{server} lived twice for {both:.2f} s, as {before.pid} and {after.pid}")
    return wrong


def gaps(made: Mapping[str, Iterable[Made]], servers: Iterable[str]) -> list[Gap]:
    """The times between two good answers of one of these servers to one front, the longest first."""
    found: list[Gap] = []
    for of_front in made.values():
        good: dict[str, list[float]] = {server: [] for server in servers}
        for call in of_front:
            if call.ended is not None and call.outcome == "ok" and call.server in good:
                good[call.server].append(call.ended)
        for server, times in good.items():
            found += [Gap(server, a, b - a) for a, b in itertools.pairwise(sorted(times))]
    return sorted(found, key=lambda gap: -gap.seconds)


def outcomes(made: Mapping[str, Iterable[Made]]) -> Counter[str]:
    return Counter(
        "nobody left to tell" if call.ended is None else f"{call.outcome} ({call.reach})"
        for of_front in made.values()
        for call in of_front
    )
