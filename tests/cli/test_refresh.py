"""`greenroom refresh`, and what the other commands and the `mcp` tool say of servers that nobody has asked."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace
from tests.support.door_rooms import FakeRoom, KnownRoom
from tests.support.forked import GREENROOM, environment_of, greenroom_in, popen_forked
from tests.support.gateway import faulty, serve
from tests.support.installs import SPEAKS, held, logged, npx, release
from tests.support.patience import PATIENCE
from tests.support.rows import for_each

from greenroom.catalogue.entries import ServerEntry
from greenroom.cli import call_command
from greenroom.cli import refresh_command as cli_refresh
from greenroom.cli.call_command import patient
from greenroom.config.model import Config, Settings
from greenroom.gateway.control_methods import look
from greenroom.gateway.exposures.query_modes import CatalogueReader
from greenroom.gateway.exposures.tool_definition import FOR_PEOPLE, parse_request
from greenroom.gateway.exposures.tool_texts import unknown_sentence as sentence
from greenroom.gateway.exposures.tool_texts import waits
from greenroom.gateway.result_meta import details_of
from greenroom.protocol.address import Address
from greenroom.protocol.events import Lagged, Note, NoteCode
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus


def configure(folder: Path, **servers: Any) -> None:
    settings = {"connectTimeoutMs": 2_000}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers, "settings": settings}))


def test_t47_refresh_alone_asks_them_once_and_shows_how_it_goes(tmp_path: Path) -> None:
    slow = npx(
        tmp_path, "slow", f"[ -e {tmp_path}/installed ] || {{ {SPEAKS}; touch {tmp_path}/installed; }}"
    )
    configure(tmp_path, quick=faulty(tmp_path, "quick"), slow=slow, bad={"command": "/no/such"})
    done = greenroom_in(tmp_path, "refresh")
    assert done.returncode == 1
    *first, installed = done.stdout.splitlines()  # in the order in which they were done
    quick, bad = sorted(first)
    assert quick.startswith("✓ quick: ")
    assert installed.startswith("✓ slow: ")
    assert bad.startswith('✗ bad: command "/no/such" was not found')
    assert "greenroom: slow: installing for " in done.stderr
    again = greenroom_in(tmp_path, "refresh", "quick", "slow", "--json")
    rows = json.loads(again.stdout)["servers"]
    assert [(row["name"], row["state"]) for row in rows] == [("quick", "known"), ("slow", "known")]
    assert len(logged(tmp_path, "start")) == 4, "asked for by name, it is asked again"
    every = json.loads(greenroom_in(tmp_path, "refresh", "--all", "--json").stdout)["servers"]
    assert {row["name"]: row["state"] for row in every} == {
        "quick": "known",
        "slow": "known",
        "bad": "failed",
    }
    assert greenroom_in(tmp_path, "refresh", "--all", "quick").returncode == 2
    assert "quick_echo" in greenroom_in(tmp_path, "tools").stdout


def test_a_server_that_fails_is_started_once_while_another_is_waited_for(tmp_path: Path) -> None:
    failing = faulty(tmp_path, "failing", "--crash-at", "tools/list") | {"lifecycle": "keep-alive"}
    hangs = faulty(tmp_path, "hangs", "--hang-at", "start")
    configure(
        tmp_path, failing=failing, hangs=hangs, eager=faulty(tmp_path, "eager") | {"lifecycle": "eager"}
    )
    said = json.loads((tmp_path / "mcp.json").read_text())
    said["settings"] |= {"restartBackoff": {"minMs": 1, "maxMs": 1}}
    (tmp_path / "mcp.json").write_text(json.dumps(said))
    done = greenroom_in(tmp_path, "refresh", "failing", "hangs")
    assert [line[:2] for line in done.stdout.splitlines()] == ["✗ ", "✗ "], done.stdout
    assert len(logged(tmp_path, "start")) == 2, "each of them once"
    assert not (tmp_path / "eager.log").exists(), "nobody has asked for it"


def test_what_kind_of_failure_it_was_is_known_without_its_text(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        configure(
            tmp_path,
            gone={"command": "/no/such"},
            ended=faulty(tmp_path, "ended", "--crash-at", "start"),
            silent=faulty(tmp_path, "silent", "--hang-at", "start"),
            nobody={"url": f"http://127.0.0.1:{port}/mcp"},
        )
        assert greenroom_in(tmp_path, "refresh").returncode == 1
    rows = json.loads(greenroom_in(tmp_path, "status", "--json").stdout)["servers"]
    assert {row["name"]: row["failureKind"] for row in rows} == {
        "gone": "program",
        "ended": "exit",
        "silent": "silence",
        "nobody": "connection",
    }
    for name in ("gone", "nobody"):
        said = greenroom_in(tmp_path, "explain", name).stdout
        assert (said.count("Its last start failed"), said.count("✗")) == (1, 0), (
            "doctor's check has found the same"
        )
    doctor = greenroom_in(tmp_path, "doctor").stdout
    assert doctor.count("✗") == 4, "each is said once"


def test_what_cannot_be_kept_is_said_with_the_next_step(tmp_path: Path) -> None:
    configure(tmp_path, a=faulty(tmp_path, "a"))
    (tmp_path / "cache").symlink_to("/no/where")  # root cannot write there either
    done = greenroom_in(tmp_path, "refresh")
    assert done.returncode == 1
    assert done.stdout.startswith("✓ a: ")
    assert "The catalogue cache was not written" in done.stderr
    assert "The pinned definitions were not written" in done.stderr
    assert "name another one in XDG_CACHE_HOME" in done.stderr


@pytest.mark.parametrize("through", ["a gateway", "a room of its own"])
def test_the_line_of_a_server_is_printed_when_it_is_done(through: str, tmp_path: Path) -> None:
    """Nothing was printed until the slowest server had ended."""
    servers = {"slow": npx(tmp_path, "slow", held(tmp_path)), "quick": faulty(tmp_path, "quick")}
    configure(tmp_path, **servers)
    command = [*GREENROOM, "refresh", "--all", "--config", os.fspath(tmp_path / "mcp.json")]
    with ExitStack() as open_now:
        if through == "a gateway":
            gateway = open_now.enter_context(serve(tmp_path, servers))
            gateway.initialize()
            command += ["--pid", str(gateway.process.pid)]
        how: dict[str, Any] = {"env": environment_of(tmp_path), "cwd": tmp_path, "text": True}
        refresh = open_now.enter_context(popen_forked(command, stdout=subprocess.PIPE, **how))
        assert refresh.stdout is not None
        try:
            is_told, _, _ = select.select([refresh.stdout], [], [], PATIENCE)
        finally:
            release(tmp_path)
        assert is_told
        assert refresh.stdout.readline().startswith("✓ quick: ")
        assert refresh.communicate(timeout=PATIENCE)[0].startswith("✓ slow: ")


def test_t47_refresh_reaches_a_running_gateway(tmp_path: Path) -> None:
    servers = {"slow": npx(tmp_path, "slow", held(tmp_path))}
    with serve(tmp_path, servers, firstListTimeoutMs=100) as gateway:
        gateway.initialize()
        refresh = popen_forked(
            [*GREENROOM, "refresh", "--config", os.fspath(tmp_path / "mcp.json")],
            env={**os.environ, "HOME": os.fspath(tmp_path), "XDG_CACHE_HOME": os.fspath(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            text=True,
        )
        until = time.monotonic() + PATIENCE
        while not logged(tmp_path, "npx"):
            assert time.monotonic() < until
            time.sleep(0.02)
        looks = [gateway.mcp(search="echo"), gateway.mcp(server="slow"), gateway.mcp()]
        texts = [look["content"][0]["text"] for look in looks]
        assert "Not known yet: slow (installing for " in texts[0]
        assert "is not known yet (installing for " in texts[1]
        assert "slow (not known yet, installing for " in texts[2]
        release(tmp_path)
        assert refresh.communicate(timeout=PATIENCE)[0].startswith("✓ slow: ")
        assert "slow_echo" in gateway.mcp(search="echo")["content"][0]["text"]
        gateway.end()
    assert len(logged(tmp_path, "npx")) == 1


@pytest.mark.parametrize("asked", [("one",), (), ("--all",)], ids=["by name", "unknown", "all"])
def test_a_server_that_is_asked_for_is_started_although_it_has_just_failed(
    asked: tuple[str, ...], tmp_path: Path
) -> None:
    """It waited until the circuit breaker let it pass, which may be minutes."""
    works = faulty(tmp_path, "mended")
    script = f"test -e {tmp_path / 'mended'} && exec {shlex.join([works['command'], *works['args']])}; exit 3"
    entry = {"command": "sh", "args": ["-c", script]}
    with serve(tmp_path, {"one": entry}, restartBackoff={"minMs": 600_000, "maxMs": 600_000}) as gateway:
        gateway.initialize()
        failed = greenroom_in(tmp_path, "refresh", *asked)
        assert (failed.returncode, "exited with code 3" in failed.stdout) == (1, True), failed.stdout
        (tmp_path / "mended").touch()
        assert greenroom_in(tmp_path, "refresh", "nobody").returncode == 2
        mended = greenroom_in(tmp_path, "refresh", *asked)
        assert (mended.returncode, mended.stdout[:7]) == (0, "✓ one: "), mended.stdout
        gateway.end()


def test_status_and_explain_say_the_same_of_the_next_try(tmp_path: Path) -> None:
    """One of them told when it is started by itself, the other how long calls are refused."""
    entry = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    backoff = {"minMs": 600_000, "maxMs": 600_000}
    with serve(tmp_path, {"one": entry}, bootstrap=True, restartBackoff=backoff) as gateway:
        gateway.initialize()
        greenroom_in(tmp_path, "refresh", "one")
        status, why = (greenroom_in(tmp_path, *asked).stdout for asked in (("status",), ("explain", "one")))
        gateway.end()
    shown = re.search(r"refuses calls, next try in (\d+ min)", status)
    told = re.search(r"refuses calls for (\d+ min) more .*; then it is tried again by itself", why)
    assert shown is not None
    assert told is not None
    assert shown.groups() == told.groups()


def test_a_server_that_is_disabled_after_it_failed_is_shown_without_its_past(tmp_path: Path) -> None:
    bad = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}

    def shown(*words: str) -> list[str]:
        """The words of the line about the server."""
        (line,) = [line for line in greenroom_in(tmp_path, *words).stdout.splitlines() if " bad " in line]
        return line.split()

    late = {"minMs": 600_000, "maxMs": 600_000}  # on a slow machine, too, it still refuses calls
    with serve(tmp_path, {"bad": bad}, restartBackoff=late) as gateway:
        gateway.initialize()
        assert greenroom_in(tmp_path, "refresh", "bad").returncode == 1
        assert {"refuses", "exited"} <= {*shown("status")}
        assert greenroom_in(tmp_path, "disable", "bad").returncode == 0
        assert "disabled" in shown("status")
        for words in (("status",), ("status", "-o", "wide")):
            assert not {"try", "waits", "exited"} & {*shown(*words)}
        (row,) = json.loads(greenroom_in(tmp_path, "status", "--json").stdout)["servers"]
        assert [row[key] for key in ("failure", "failedAgo", "retryIn", "waitingFor")] == [None] * 4
        assert gateway.end() == 0
    assert shown("status") == ["⊘", "bad", "disabled"]


def test_t47_a_call_alone_waits_for_the_install_that_ends_with_it(tmp_path: Path) -> None:
    configure(tmp_path, slow=npx(tmp_path, "slow", SPEAKS))
    done = greenroom_in(tmp_path, "call", "slow_echo", "text=hi")
    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr
    assert patient(Config()).settings.queue_timeout == Settings().install_timeout == 600.0
    said = Config(settings=Settings(queue_timeout=3.0), setting_sources={"queue_timeout": "mcp.json"})
    assert patient(said).settings.queue_timeout == 3.0


def test_of_what_happens_while_a_person_waits_only_an_install_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for code in NoteCode:
        call_command._tell_progress(Note(1, 0.0, Address("s"), code=code, words="fetched 3 of 7"))
    call_command._tell_progress(Lagged(3))
    assert capsys.readouterr() == ("", "greenroom: s: fetched 3 of 7\n")


def test_what_a_server_waits_for_is_said_in_words() -> None:
    def row(**facts: Any) -> ServerStatus:
        return ServerStatus("a", **facts)

    installing = row(state=State.CONNECTING, waiting_for="install", waiting=12.3, last_line="added 3")
    assert waits(installing) == "installing for 12 s"
    assert waits(row(state=State.CONNECTING, waiting=3.0)) == "connecting for 3 s"
    assert waits(row(waiting_for="slot", waiting=1.0)) == "waiting 1 s for a slot"
    assert (
        waits(row(waiting_for="breaker", failed_ago=5.0, retry_in=3.0)) == "failed 5 s ago, next try in 3 s"
    )
    assert waits(row(failed_ago=5.0)) == "failed 5 s ago"
    assert waits(row(needs_auth=True, down="login")) == "needs a login"
    assert waits(row(down="drained")) == "down"
    assert waits(row()) == "not asked yet"


def answer(room: KnownRoom, **request: Any) -> tuple[str, Mapping[str, Any]]:
    result = room.result_of(request, hints=FOR_PEOPLE)
    return result["content"][0]["text"], details_of(result)


def test_the_mcp_tool_does_not_say_not_found_of_a_server_that_was_never_asked() -> None:
    room = KnownRoom()
    text, asked = answer(room, describe="fresh_thing")
    assert asked["error"] == "not_known_yet"
    assert 'Nothing is known of "fresh" yet, nor whether it has "fresh_thing".' in text
    text, elsewhere = answer(room, describe="zebra")
    assert elsewhere["error"] == "tool_not_found"
    assert "The tools of fresh are not known yet. To read them: greenroom refresh fresh" in text
    assert elsewhere["unknownServers"] == [{"server": "fresh", "name": "fresh", "waitsFor": "not asked yet"}]
    room.learn("fresh", {"name": "other", "inputSchema": {}})
    text, known = answer(room, describe="fresh_thing")
    assert known["error"] == "tool_not_found"
    assert "not known yet" not in text


def test_a_search_says_that_a_server_is_not_known_only_if_it_may_have_something_better() -> None:
    room = KnownRoom()
    unknown = "The tools of fresh are not known yet. To read them: greenroom refresh fresh"
    for words in ("zebra", "create a zebra"):
        assert answer(room, search=words)[0].count(unknown) == 1, words
    text, good = answer(room, search="create issue")
    assert "not known yet" not in text
    assert good["unknownServers"], "a program is told of it nevertheless"


def test_a_person_is_told_how_many_servers_are_not_known_and_which_one_it_is() -> None:
    rows = [ServerStatus(f"s{number}") for number in range(22)]
    hints = FOR_PEOPLE
    assert sentence(rows[:0], hints) == ""
    one = "The tools of s0 are not known yet. To read them: greenroom refresh s0"
    assert sentence(rows[:1], hints) == one
    assert (
        sentence(rows, hints) == "The tools of 22 servers are not known yet. To read them: greenroom refresh"
    )
    failed = [ServerStatus(name, failed_ago=1.0, failure="no") for name in "ab"]
    assert sentence(failed, hints) == "The tools of 2 servers are not known yet: greenroom status"
    asked = [ServerStatus("a", waiting_for="slot"), ServerStatus("b", state=State.CONNECTING)]
    assert sentence(asked, hints) == "The tools of 2 servers are not known yet: they are being read now."
    assert sentence([*failed, *asked], hints) == "The tools of 4 servers are not known yet: greenroom status"
    assert "greenroom explain a" in sentence(failed[:1], hints)


def test_how_a_server_that_is_asked_is_doing() -> None:
    since = time.time()
    entry = ServerEntry("clock", "h", tools=(), fetched_at=since - 100.0)

    def doing(known: ServerEntry | None = entry, **row: Any) -> dict[str, Any]:
        room = FakeRoom()
        room.entries["clock"], room.rows = known, {"clock": row}
        (one,) = anyio.run(look, room, {"names": ["clock"], "since": since})
        return one

    waiting = {
        "server": "clock",
        "name": "clock",
        "state": "waiting",
        "waitsFor": "not asked yet",
        "waitingFor": None,
        "lastLine": None,
    }
    assert doing(tool_count=3) == waiting, "what was known before is not what was asked for"
    assert doing(None) == waiting
    assert doing(replace(entry, fetched_at=since), tool_count=3, resource_count=2) == {
        "server": "clock", "name": "clock", "state": "known", "tools": 3, "resources": 2,
    }  # fmt: skip
    assert doing(state=State.CONNECTED)["state"] == "waiting", "it lists again"
    assert doing(last_line="npm: 3 of 7")["lastLine"] == "npm: 3 of 7"
    assert doing(None, state=State.CONNECTED)["state"] == "waiting"
    failed = doing(failed_ago=0.0, failure="no", retry_in=2.0)
    assert failed == {"server": "clock", "name": "clock", "state": "failed", "failure": "no", "retryIn": 2.0}
    assert doing(failed_ago=60.0)["state"] == "waiting", "that was before"
    assert doing(failed_ago=60.0, retry_in=9.0)["retryIn"] == 9.0
    for place in (None, "breaker"):  # which keeps who asks waiting for a second at most
        again = doing(failed_ago=60.0, retry_in=9.0, waiting_for=place)
        assert again["waitsFor"] == "trying it again"
    assert doing(failed_ago=60.0, waiting_for="slot", waiting=2.0)["waitsFor"] == "waiting 2 s for a slot"
    assert doing(down="drained", failure="no")["failure"] == "drained"
    room = FakeRoom()
    gone = anyio.run(look, room, {"names": ["gone"], "since": since})
    assert [(row["name"], row["state"]) for row in gone] == [("gone", "failed")]


def test_without_a_terminal_a_change_is_a_line_and_all_is_summed_up_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, now = list[str](), [100.0]
    monkeypatch.setattr(cli_refresh, "say", said.append)
    monkeypatch.setattr(cli_refresh.time, "monotonic", lambda: now[0])
    progress = cli_refresh.Progress()

    def tell(waits_for: str, line: str | None = None, place: str | None = None) -> bool:
        doing = {"state": "waiting", "waitsFor": waits_for, "waitingFor": place, "lastLine": line}
        return progress.tell([{"server": "a", "name": "a", **doing}, {"name": "b", "state": "known"}])

    def heard() -> list[str]:
        new = said[:]
        said.clear()
        return new

    assert not tell("connecting for 0 s")
    tell("connected, and its lists are read")
    tell("trying it again")
    assert heard() == [], "all do that"
    tell("installing for 1 s", "fetched 1", "install")
    assert heard() == ["a: installing for 1 s: fetched 1"]
    now[0] += 9.9
    assert not tell("installing for 11 s", "fetched 2", "install")
    assert heard() == [], "no news"
    now[0] += 0.1
    tell("installing for 11 s", "fetched 3", "install")
    tell("installing for 11 s", "fetched 4", "install")
    assert heard() == ["after 10 s: 1 of 2 done; a (installing for 11 s: fetched 3)"]
    now[0] += 9.9
    tell("installing for 20 s", "fetched 5", "install")
    assert heard() == [], "twice as long after the last one"
    now[0] += 0.1
    tell("trying it again")
    assert heard() == ["after 20 s: 1 of 2 done; a (trying it again)"]
    tell("waiting 0 s for a slot", None, "slot")
    assert heard() == ["a: waiting 0 s for a slot"]
    assert progress.tell([{"server": "a", "name": "a", "state": "known"}, {"name": "b", "state": "failed"}])
    assert progress.tell([])
    assert heard() == []


def test_a_server_that_is_shown_has_what_it_waits_for_in_the_overview() -> None:
    room = FakeRoom()
    room.rows["fresh"] = msgspec.structs.asdict(
        ServerStatus("fresh", state=State.CONNECTING, waiting_for="install", waiting=7.0, last_line="x"),
    )
    assert (
        "○ fresh (not known yet, installing for 7 s: x)"
        in CatalogueReader(room).answer(parse_request({})).text
    )


@for_each(("words", "place"), [("waiting {} s for a slot", "slot"), ("installing for {} s", "install")])
def test_how_long_a_server_has_waited_is_no_news(
    monkeypatch: pytest.MonkeyPatch, words: str, place: str
) -> None:
    said = list[str]()
    monkeypatch.setattr(cli_refresh, "say", said.append)
    monkeypatch.setattr(cli_refresh.time, "monotonic", lambda: 100.0)
    progress = cli_refresh.Progress()
    for second in range(1, 40):
        said_of_it = {"waitsFor": words.format(second), "waitingFor": place, "lastLine": None}
        progress.tell([{"name": "a", "state": "waiting", **said_of_it}])
    assert said == [f"a: {words.format(1)}"]
