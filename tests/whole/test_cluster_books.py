"""What `make cluster` compares: each thing that must not be is found in the books, and honest books are in order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest
from tools.cluster import books, faults

SERVERS = {"persistent": ["shared"], "per_session": ["session"], "per_call": ["call"]}


def process(
    folder: Path, server: str, pid: int, lived: tuple[float, float], ran: Iterable[tuple[str, str]]
) -> None:
    born, last = lived
    lines = [{"at": born, "what": "born"}]
    lines += [{"at": born, "what": "ran", "call": call, "who": who} for call, who in ran]
    lines += [{"at": last, "what": "beat"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{server}.{pid}.{born:.0f}.log").write_text(text + '{"at": 9')  # it was killed as it wrote


def front(folder: Path, calls: Iterable[tuple[str, str, str | None, str]]) -> None:
    lines: list[dict[str, object]] = []
    for call, server, outcome, reach in calls:
        lines.append({"at": 1.0, "what": "made", "call": call, "server": server})
        if outcome is not None:
            lines.append({"at": 2.0, "what": "ended", "call": call, "outcome": outcome, "reach": reach})
    (folder / "front.7.calls").write_text("".join(json.dumps(line) + "\n" for line in lines))


def found(folder: Path, killed: frozenset[str] = frozenset()) -> list[str]:
    return books.faults_in(books.lives(folder), books.calls(folder), SERVERS, killed)


def test_honest_books_are_in_order(tmp_path: Path) -> None:
    process(tmp_path, "shared", 1, (1.0, 4.0), [("a", "x"), ("b", "y")])
    process(tmp_path, "shared", 2, (5.0, 6.0), [])
    process(tmp_path, "session", 3, (1.0, 9.0), [("c", "x"), ("d", "x")])
    process(tmp_path, "session", 4, (1.0, 9.0), [("e", "y")])
    ended = [("a", "shared", "ok", "answered"), ("b", "shared", "server_lost", "sent")]
    ended += [("c", "session", "ok", "answered"), ("f", "shared", "server_unavailable", "not_sent")]
    front(tmp_path, ended)
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "ran", "says"),
    [
        (("a", "shared", "server_unavailable", "not_sent"), [("a", "x")], "is not_sent"),
        (("a", "shared", "ok", "answered"), [], "nobody has run it"),
        (("a", "shared", "ok", "answered"), [("a", "x"), ("a", "x")], "has run 2 times"),
        (("a", "shared", None, ""), [], "has no outcome"),
    ],
)
def test_a_call_that_ended_wrongly_is_found(
    tmp_path: Path, call: tuple[str, str, str | None, str], ran: list[tuple[str, str]], says: str
) -> None:
    process(tmp_path, "shared", 1, (1.0, 4.0), ran)
    front(tmp_path, [call])
    (wrong,) = found(tmp_path)
    assert says in wrong


def test_the_last_calls_of_a_front_that_was_killed_need_no_outcome(tmp_path: Path) -> None:
    front(tmp_path, [("a", "shared", None, "")])
    assert found(tmp_path, frozenset({"front.7"})) == []


def test_a_server_that_lived_twice_is_found(tmp_path: Path) -> None:
    process(tmp_path, "shared", 1, (1.0, 4.0), [])
    process(tmp_path, "shared", 2, (3.5, 6.0), [])
    assert found(tmp_path) == ["shared lived twice for 0.50 s, as 1 and 2"]


def test_a_process_that_served_two_sessions_or_two_calls_is_found(tmp_path: Path) -> None:
    process(tmp_path, "session", 1, (1.0, 4.0), [("a", "x"), ("b", "y")])
    process(tmp_path, "call", 2, (1.0, 4.0), [("c", "x"), ("d", "x")])
    assert sorted(wrong.split(" served ")[1] for wrong in found(tmp_path)) == [
        "2 calls",
        "2 sessions: ['x', 'y']",
    ]


def test_the_sequence_of_faults_follows_from_the_seed() -> None:
    first = [*islice(faults.drawn("one"), 500)]
    assert first == [*islice(faults.drawn("one"), 500)]
    assert first != [*islice(faults.drawn("another"), 500)]
    assert {strike.fault for strike in first} == set(faults.FAULTS)
