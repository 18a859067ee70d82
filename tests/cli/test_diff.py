"""`greenroom diff`: a tape and its servers as they are now, with a real server whose tools and answers a test changes;
and two tapes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from tests.support.homes import home as home
from tests.support.shapes import conforms

from greenroom import Greenroom
from greenroom.cli.main import run
from greenroom.errors import RemoteError

# Its tools and answers stand in a file, and so does which calls it got.
SERVER = """
import json, os, sys, time
AT, made = sys.argv[1], 0
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    got = json.loads(line)
    method, params, key = got.get("method"), got.get("params") or {}, got.get("id")
    with open(AT) as file:
        now = json.load(file)
    if method == "initialize":
        info = {"name": "shop", "version": now["version"]}
        say(id=key, result={"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                            "serverInfo": info})
    elif method == "tools/list":
        say(id=key, result={"tools": now["tools"]})
    elif method == "tools/call":
        with open(AT + ".calls", "a") as file:
            file.write(params["name"] + "\\n")
        time.sleep(now["takes"])
        answer, made = now["answers"][params["name"]], made + 1
        if answer == "crash":
            os._exit(3)
        if answer == "count":
            answer = f"call {made} of this process"
        if answer == "roots":
            say(id="roots", method="roots/list")
            answer = [each["uri"] for each in json.loads(sys.stdin.readline())["result"]["roots"]]
        if isinstance(answer, dict) and "code" in answer:
            say(id=key, error=answer)
        else:
            text = answer if isinstance(answer, str) else json.dumps(answer)
            say(id=key, result={"content": [{"type": "text", "text": text}]})
    elif key is not None:
        say(id=key, error={"code": -32601, "message": "no"})
"""
READS: dict[str, Any] = {"annotations": {"readOnlyHint": True}}
GET: dict[str, Any] = {
    "name": "get",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "string"}}},
    **READS,
}
LIST: dict[str, Any] = {"name": "list", "inputSchema": {"type": "object"}, **READS}
PUT: dict[str, Any] = {"name": "put", "inputSchema": {"type": "object"}}
CALLS: Sequence[tuple[str, dict[str, Any]]] = (
    ("shop_get", {"n": "1"}),
    ("shop_list", {}),
    ("shop_put", {"what": "milk"}),
    ("shop_get", {"n": "1"}),
)


@attrs.define
class Shop:
    """The server, its configuration and its tapes, in a folder."""

    folder: Path
    tools: list[dict[str, Any]] = attrs.Factory(lambda: [GET, LIST, PUT])
    answers: dict[str, Any] = attrs.Factory(
        lambda: {"get": {"price": 3, "at": "10:00"}, "list": "one\ntwo\nthree", "put": "done"}
    )
    version: str = "1"
    takes: float = 0.0
    entry: dict[str, Any] = attrs.Factory(dict[str, Any])

    @property
    def config(self) -> str:
        return os.fspath(self.folder / "mcp.json")

    def write(self, **changed: Any) -> None:
        """Change it; from its next call on it is so."""
        for name, value in changed.items():
            setattr(self, name, value)
        (self.folder / "server.py").write_text(SERVER)
        state = {"tools": self.tools, "answers": self.answers, "version": self.version, "takes": self.takes}
        (self.folder / "state.json").write_text(json.dumps(state))
        words = ["-S", os.fspath(self.folder / "server.py"), os.fspath(self.folder / "state.json")]
        entry = {"command": sys.executable, "args": words, **self.entry}
        (self.folder / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": entry}}))

    def record(
        self, name: str = "one", calls: Sequence[tuple[str, dict[str, Any]]] = CALLS, **options: Any
    ) -> str:
        """A tape of these calls, one after another."""
        tape = self.folder / f"{name}.tape"

        async def main() -> None:
            async with Greenroom.open(self.config, record=tape, cache_path=":memory:", **options) as room:
                for tool, arguments in calls:
                    try:
                        await room.call(tool, arguments)
                    except RemoteError as error:  # which is on the tape, too
                        if error.rpc_code != -32050:
                            raise

        anyio.run(main)
        (self.folder / "state.json.calls").unlink(missing_ok=True)
        return os.fspath(tape)

    @property
    def got(self) -> list[str]:
        """The calls that it got since the tape."""
        calls = self.folder / "state.json.calls"
        return calls.read_text().split() if calls.exists() else []


@pytest.fixture
def shop(home: Path) -> Shop:
    made = Shop(home / "work")
    made.write()
    return made


@pytest.fixture
def diff(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `greenroom diff --json` against the shop; its exit code and document."""

    def compared(tape: str, *words: str, against: bool = True) -> tuple[int, Any]:
        capsys.readouterr()
        code = run(["diff", tape, *words, *(["--against", shop.config] if against else []), "--json"])
        said = capsys.readouterr()
        assert said.out, said.err
        document = json.loads(said.out)
        conforms("diff", document)
        assert code == int(not document["same"])
        return code, document

    return compared


def test_servers_that_are_as_they_were_are_the_same_and_nothing_that_writes_is_sent(
    shop: Shop, diff: Any
) -> None:
    tape = shop.record()
    code, found = diff(tape)
    assert (code, found["callsTheSame"], found["calls"], found["definitions"]) == (0, 3, [], [])
    assert shop.got == ["get", "list", "get"]
    assert [(one["name"], one["calls"]) for one in found["notSent"]] == [("shop_put", 1)]


def test_what_has_changed_is_told(shop: Shop, diff: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tape = shop.record()
    fresh = {**GET, "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}}}
    answers = {"get": {"price": 4, "at": "11:00"}, "list": "one\n2\nthree\nfour"}
    shop.write(tools=[fresh, LIST, {**PUT, "name": "buy"}], answers=answers, version="2")
    code, found = diff(tape, "--ignore", "at")
    assert code == 1
    assert [(one["what"], one["name"], one["changes"]) for one in found["definitions"]] == [
        (
            "changed",
            "get",
            [{"path": "inputSchema.properties.n.type", "before": '"string"', "after": '"number"'}],
        ),
        ("gone", "put", []),
        ("new", "buy", []),
    ]
    price = [{"path": "content[0].text.price", "before": "3", "after": "4"}]
    lines = [
        {"path": "content[0].text line 2", "before": '"two"', "after": '"2"'},
        {"path": "content[0].text line 4", "before": None, "after": '"four"'},
    ]
    told = [(one["what"], one["name"], one["changes"], one["behind"]) for one in found["calls"]]
    assert told == [
        ("answer", "shop_get", price, None),
        ("answer", "shop_list", lines, None),
        ("answer", "shop_get", price, 3),
    ]
    assert found["versions"] == [{"server": "shop", "before": "1", "after": "2"}]
    assert run(["diff", tape, "--against", shop.config]) == 1
    told_so = capsys.readouterr().out
    assert 'inputSchema.properties.n.type: "string" → "number"' in told_so
    assert "content[0].text.price: 3 → 4" in told_so
    assert "may be so because call 3 was not made again" in told_so


def test_a_tool_is_called_only_if_it_reads_on_the_tape_and_now(shop: Shop, diff: Any) -> None:
    tape = shop.record()
    shop.write(tools=[{**GET, "annotations": {}}, LIST, {**PUT, **READS}])
    _, found = diff(tape)
    assert shop.got == ["list"]
    assert {one["name"]: one["why"] for one in found["notSent"]} == {
        "shop_put": "may change something, as far as the tape says",
        "shop_get": "does not say any more that it only reads",
    }


def test_whoever_lists_a_tool_answers_for_it(
    shop: Shop, diff: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = shop.record()
    code, found = diff(tape, "--reads", "shop_put")
    assert (code, shop.got, found["notSent"]) == (0, ["get", "list", "put", "get"], [])
    (shop.folder / "state.json.calls").unlink()
    code, found = diff(tape, "--only", "shop_put")
    assert (code, shop.got, found["callsTheSame"]) == (0, ["put"], 1)
    for words, told in (
        (["--reads", "shop_putt"], 'Did you mean "shop_put"?'),
        (["shap"], 'Did you mean "shop"?'),
    ):
        assert run(["diff", tape, "--against", shop.config, *words]) == 2
        assert told in capsys.readouterr().err


def test_errors_in_place_of_answers_and_answers_in_place_of_errors(shop: Shop, diff: Any) -> None:
    shop.write(answers={**shop.answers, "get": {"code": -32050, "message": "closed"}})
    tape = shop.record(calls=CALLS[:2])
    shop.write(answers={"get": {"price": 3}, "list": {"code": -32050, "message": "shut"}})
    code, found = diff(tape)
    assert code == 1
    assert [(one["outcomeBefore"], one["outcomeAfter"]) for one in found["calls"]] == [
        ("call_failed", "answer"),
        ("answer", "call_failed"),
    ]
    assert {"path": "message", "before": None, "after": '"shut"'} in found["calls"][1]["changes"]
    shop.write(answers={"get": {"code": -32050, "message": "closed"}, "list": "crash"})
    code, found = diff(tape)
    (lost,) = found["calls"]
    assert (code, lost["name"], lost["outcomeAfter"]) == (1, "shop_list", "call_failed")
    assert "code 3" in lost["changes"][0]["after"]


def test_slowness_is_a_difference_where_it_is_asked_for(
    shop: Shop, diff: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = shop.record()
    shop.write(takes=0.3)
    code, found = diff(tape)
    assert (code, {one["name"] for one in found["times"]}) == (0, {"shop_get", "shop_list"})
    code, found = diff(tape, "--slower", "2")
    assert (code, [one["slower"] for one in found["times"]]) == (1, [True, True])
    assert [one for one in found["times"] if not one["after"] > 0.25 > one["before"]] == []
    assert run(["diff", tape, "--against", shop.config, "--timeout", "0.05"]) == 1
    assert "answer → timeout" in capsys.readouterr().out


def test_a_server_that_cannot_be_asked_is_told_once_with_the_next_step(
    shop: Shop, diff: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = shop.record()
    shop.write(entry={"command": "/no/such/shop"})
    code, found = diff(tape)
    (lost,) = found["definitions"]
    assert (code, lost["what"], "/no/such/shop" in lost["why"]) == (1, "unreachable", True)
    assert {one["name"]: one["calls"] for one in found["notSent"]} == {
        "shop_put": 1,
        "shop_get": 2,
        "shop_list": 1,
    }
    shop.write(entry={"disabled": True})
    assert run(["diff", tape, "--against", shop.config]) == 1
    assert f"greenroom enable --config {shop.config} shop" in capsys.readouterr().out


def test_calls_that_somebody_has_to_allow_are_asked_for_as_ever(shop: Shop, diff: Any) -> None:
    tape = shop.record()
    shop.write(entry={"approve": "all"})
    code, found = diff(tape)
    assert (code, shop.got) == (1, [])
    assert {one["outcomeAfter"] for one in found["calls"]} == {"approval_required"}
    code, found = diff(tape, "--yes")
    assert (code, shop.got) == (0, ["get", "list", "get"])


def test_a_tool_that_has_changed_is_called_when_that_is_accepted(shop: Shop, diff: Any) -> None:
    tape = shop.record()
    assert diff(tape)[0] == 0
    shop.write(tools=[{**GET, "description": "Get more."}, LIST, PUT])
    _, found = diff(tape)
    assert {(one["name"], one["outcomeAfter"]) for one in found["calls"]} == {("shop_get", "tool_changed")}
    assert f"greenroom accept --config {shop.config} shop get" in found["calls"][0]["why"]
    assert run(["accept", "shop", "get", "--config", shop.config]) == 0
    _, found = diff(tape)
    assert (found["calls"], found["callsTheSame"]) == ([], 3)
    assert [one["name"] for one in found["definitions"]] == ["get"]


def test_what_is_hidden_on_the_tape_is_not_sent(shop: Shop, diff: Any) -> None:
    tape = shop.record(redact=["n"])
    code, found = diff(tape)
    assert (code, shop.got) == (0, ["list"])
    assert {one["why"] for one in found["notSent"] if one["name"] == "shop_get"} == {
        "arguments are hidden on the tape"
    }


def test_what_is_answered_now_can_be_kept_as_a_tape(shop: Shop, diff: Any) -> None:
    tape = shop.record()
    code, found = diff(tape, "--record", os.fspath(shop.folder / "kept"), "--redact", "n")
    (kept,) = (shop.folder / "kept").glob("*.tape")
    assert (code, found["kept"]) == (0, os.fspath(kept))
    assert '"n":"[REDACTED]"' in kept.read_text()
    code, found = diff(tape, os.fspath(kept), "--ignore", "n", against=False)
    assert (code, [one["what"] for one in found["calls"]]) == (1, ["left_out"])


def test_each_recorded_session_is_a_session(shop: Shop, diff: Any) -> None:
    shop.write(entry={"isolation": "per_session"}, answers={"get": "count"})
    tape = shop.folder / "one.tape"

    async def main() -> None:
        async with (
            Greenroom.open(shop.config, record=tape, cache_path=":memory:") as room,
            room.session("ann") as ann,
            room.session("bob") as bob,
        ):
            for session in (ann, bob, ann, ann):
                await session.call("shop_get", {})

    anyio.run(main)
    code, found = diff(os.fspath(tape))
    assert (code, found["callsTheSame"]) == (0, 4), found


def test_a_folder_stands_for_its_configuration(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    tape = shop.record()
    (shop.folder / ".mcp.json").write_text((shop.folder / "mcp.json").read_text())
    assert run(["diff", tape, "--against", "."]) == 1
    assert "greenroom trust" in capsys.readouterr().out
    assert run(["trust", "--yes"]) == 0
    assert run(["diff", tape, "--against", ".", "shop"]) == 0


def test_two_runs_side_by_side(shop: Shop, diff: Any, capsys: pytest.CaptureFixture[str]) -> None:
    one = shop.record()
    shop.write(answers={**shop.answers, "list": "one\ntwo\nfour"})
    changed = [
        ("shop_list", {}),
        ("shop_get", {"n": "1"}),
        ("shop_put", {"what": "bread"}),
        ("shop_get", {"n": "1"}),
        ("shop_get", {"n": "9"}),
    ]
    two = shop.record("two", changed)
    assert diff(one, one, against=False)[0] == 0
    code, found = diff(one, two, against=False)
    assert code == 1
    told = [(each["what"], each["name"], each["before"], each["after"]) for each in found["calls"]]
    assert told == [
        ("order", "shop_get", 1, 2),
        ("answer", "shop_list", 2, 1),
        ("arguments", "shop_put", 3, 3),
        ("added", "shop_get", None, 5),
    ]
    assert found["calls"][2]["changes"] == [{"path": "what", "before": '"milk"', "after": '"bread"'}]
    assert run(["diff", two, one]) == 1
    assert re.search(r"^- +5 +shop_get: left out", capsys.readouterr().out, re.MULTILINE)


def test_a_server_is_told_of_the_roots_that_are_named(shop: Shop, diff: Any) -> None:
    shop.write(answers={**shop.answers, "list": "roots"})
    tape = shop.record(calls=[("shop_list", {})], roots=[shop.folder])
    code, found = diff(tape)
    assert (code, [each["what"] for each in found["calls"]]) == (1, ["answer"])
    assert diff(tape, "--roots", os.fspath(shop.folder))[0] == 0


def test_options_that_do_not_fit_are_refused(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    tape = shop.record()
    for words in (
        [],
        ["--only", "shop_get"],
        [tape, "--yes"],
        [tape, "--roots", "."],
        [tape, tape],
        ["mcp.json"],
    ):
        assert run(["diff", tape, *words]) == 2
        assert re.search(r"--against (CONFIG|mcp\.json)", capsys.readouterr().err)


def test_lines_fit_the_window(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = shop.record(calls=[("shop_get", {"n": "界" * 300}), ("shop_list", {})])
    shop.write(answers={"get": {"price": 4, "at": "\x1b[31m" + "long " * 100}, "list": "l" * 400})
    for columns in (80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        screen = at_terminal(monkeypatch, ["diff", tape, "--against", shop.config])
        assert "\x1b[33m~" in screen
        plain = re.sub(r"\x1b\[\d+m", "", screen)
        assert "\x1b" not in plain
        from rich.cells import cell_len

        assert [line for line in plain.splitlines() if cell_len(line) > columns] == []
        assert "shop_get: other answer" in plain


def at_terminal(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> str:
    """What the command prints on the terminal of a person."""
    import io

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    with monkeypatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        patch.setattr(sys, "stdout", screen)
        run(words)
    return screen.getvalue()
