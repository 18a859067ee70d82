"""`--json`: each command prints what its documented shape says, with a gateway and without."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from tests.gateway.test_http_serve import served
from tests.support.attached import background
from tests.support.gateway import serve
from tests.support.homes import home as home
from tests.support.homes import own_config
from tests.support.rows import for_each
from tests.support.shapes import conforms, wrong
from tests.support.whole import direct_door, whole
from tools.reference import shapes
from tools.reference.shapes import PRINTED

from greenroom.cli import logs_command
from greenroom.cli.command_group import COMMANDS, cli
from greenroom.cli.doctor_command import ReasonJson
from greenroom.cli.json_shapes import AddressJson, UnknownJson, plain
from greenroom.cli.main import run
from greenroom.cli.query_commands import ClearedJson
from greenroom.protocol.status import ServerStatus, json_of

ECHO = {
    "command": sys.executable,
    "args": [
        "-S",
        os.fspath(Path(__file__).parents[2] / "src" / "greenroom" / "testing" / "servers" / "echo.py"),
    ],
}
FAILS = {"command": sys.executable, "args": ["-S", "-c", "import sys; sys.exit('no database')"]}

Said = Callable[..., Any]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command with `--json`, and check what it prints. `shape`: the name of its form, if it is not the first
    word."""

    def ask(*words: str, shape: str | None = None, code: int = 0) -> Any:
        capsys.readouterr()
        at = words.index("--") if "--" in words else len(words)
        assert run([*words[:at], "--json", *words[at:]]) == code, capsys.readouterr().err
        out = capsys.readouterr().out
        return conforms(shape or words[0], json.loads(out))

    return ask


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose commands find the gateways of the tests."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(home))
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(home / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", os.fspath(home / "state"))
    return home


# ---- the types and the page ------------------------------------------------------------------------------------------


def _with_json() -> Iterator[str]:
    context = click.Context(cli)
    yield "greenroom"
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        group = command.commands if isinstance(command, click.Group) else {"": command}
        for inner, one in group.items():
            if any("--json" in option.opts for option in one.params):
                yield f"{name} {inner}".strip()


def test_every_command_that_can_print_json_has_a_shape() -> None:
    assert set(_with_json()) <= PRINTED.keys()
    forms = {
        form
        for form in PRINTED
        if not any(form == name or form.startswith(f"{name} ") for name in _with_json())
    }
    assert not forms, "of no command"


def test_each_struct_is_told_once_with_each_of_its_fields() -> None:
    structs = {shapes.name_of(shape): shape for shape in shapes.homes()}
    sections = [
        section
        for page in (Path(__file__).parents[2] / "docs" / "reference" / "commands").glob("*.md")
        for section in re.split(r"^### ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        if section.startswith(tuple(f"{name}\n" for name in structs))
    ]
    assert sorted(section.split("\n", 1)[0] for section in sections) == sorted(structs)
    for section in sections:
        name = section.split("\n", 1)[0]
        own = {field.name for field in shapes.fields_of(structs[name])}
        named = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
        base = re.search(r"^The fields of \[(\w+)\]", section, re.MULTILINE)
        theirs = {field.name for field in shapes.fields_of(structs[base[1]])} if base else set[str]()
        assert named | theirs == own, name


def test_every_form_is_checked_with_what_a_real_command_prints() -> None:
    source = "".join(
        file.read_text(encoding="utf-8") for file in Path(__file__).parents[1].rglob("test_*.py")
    )
    missing = [
        form
        for form in PRINTED
        if f'conforms("{form}"' not in source
        and f'shape="{form}"' not in source
        and not (" " not in form and f'said("{form}"' in source)
    ]
    assert missing == []


def test_an_address_has_the_fields_of_the_status() -> None:
    row = json_of(ServerStatus("s"))
    assert [field.name for field in shapes.fields_of(AddressJson)] == list(row)
    assert len(row) == len(ServerStatus.__struct_fields__) + 3


@for_each(
    ("value", "kind", "is_right"),
    [
        ({"removed": 1}, ClearedJson, True),
        ({"removed": True}, ClearedJson, False),
        ({"removed": 1, "more": 1}, ClearedJson, False),
        ({}, ClearedJson, False),
        ({"server": "a", "name": "a", "waitsFor": "b"}, UnknownJson, True),
        ({"server": "a", "name": "a", "waitsFor": "b", "failure": None}, UnknownJson, False),
        ([{"about": "state", "what": "a", "step": None}], list[ReasonJson], True),
        ([{"what": "a", "step": 1}], list[ReasonJson], False),
    ],
    ids=repr,
)
def test_a_wrong_value_is_seen(value: Any, kind: Any, is_right: bool) -> None:
    assert (wrong(value, kind) is None) is is_right


def test_what_another_version_says_is_printed_as_it_is() -> None:
    assert plain({"removed": 1, "more": 2}, ClearedJson) == {"removed": 1}
    assert plain({"removed": "all"}, ClearedJson) == {"removed": "all"}
    assert plain(ClearedJson(removed=1)) == {"removed": 1}


# ---- without a gateway -----------------------------------------------------------------------------------------------


def test_what_looks_prints_its_shape_from_the_cache(folder: Path, said: Said) -> None:
    own_config(folder, json.dumps({"mcpServers": {"echo": ECHO, "bad": FAILS, "broken": {}}}))
    said("search", "echo")
    assert said("tools", "echo", code=1)["error"] == "not_known_yet"
    assert said("describe", "echo_echo", code=1)["message"]
    rows = said("refresh", code=1)["servers"]
    assert {row["name"]: row["state"] for row in rows} == {"echo": "known", "bad": "failed"}
    assert {row["name"]: row["status"] for row in said("status")["servers"]} == {
        "echo": "cached",
        "bad": "failed",
        "broken": "broken",
    }
    assert [node["state"] for node in said("tree")["tree"]["children"]] == ["cached", "failed", "broken"]
    for words in (["tools"], ["tools", "echo"], ["search", "echo"], ["describe", "echo_echo"]):
        assert said(*words)["source"] == "cache"
    assert said("search", "echo", "--server", "nope", code=2)["message"].startswith('Server "nope"')
    assert said("tools", "nope", code=2)["error"] == "server_not_found"
    for server in ("echo", "bad", "broken"):
        said("explain", server)
        said("config")
    said("doctor", code=1)
    said("doctor", "--start", code=1)
    said("doctor", "--require", "echo,bad", code=1)
    said(shape="greenroom")
    said("--version", shape="greenroom --version")
    said("cost")
    said("cost", "--search", "echo")
    said("config", "--schema", shape="config --schema")
    assert said("call", "echo_echo", "text=hi")["content"] == [{"type": "text", "text": "hi"}]
    assert len(said("call", "echo_echo", "size=400000")["content"][0]["text"]) == 400_000
    assert said("call", "bad_thing", code=1)["message"]
    assert said("call", "thing", "--server", "bad", code=1)["message"]
    said("outputs")
    said("outputs", "--clear", shape="outputs --clear")
    assert [line["from"] for line in said("logs", "bad")["lines"]][:1] == ["greenroom"]
    said("accept")
    said("stop")
    said("bench", "churn", "echo", "-n", "2", shape="bench churn")


def test_what_changes_the_configuration_prints_its_shape(folder: Path, said: Said) -> None:
    said("add", "echo", "--", *ECHO["args"])
    said("add", "echo", "--force", "--", "echo")
    for _ in range(2):
        said("disable", "echo")
    said("enable", "echo")
    said("remove", "echo")
    said("trust")
    (folder / "work" / ".mcp.json").write_text(json.dumps({"mcpServers": {"echo": ECHO}}))
    said("trust", code=1)
    said("trust", "--yes")
    said("trust", "--list", shape="trust --list")
    said("trust", "--revoke", shape="trust --revoke")
    said("auth")
    (folder / ".cursor").mkdir()
    (folder / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"echo": ECHO}}))
    said("init")
    for options in (["--dry-run"], ["--move"], ["--undo"], ["--force"], ["--undo", "--dry-run"]):
        said("init", "cursor", *options, shape="init CLIENT")
    said("init", "zed", shape="init CLIENT", code=1)


# ---- with one --------------------------------------------------------------------------------------------------------


def test_what_a_gateway_says_has_the_same_shape(folder: Path, said: Said) -> None:
    events, audit = folder / "events.jsonl", folder / "audit.jsonl"
    servers = {"echo": ECHO, "bad": FAILS, "own": {**ECHO, "isolation": "per_session"}}
    with serve(folder, servers, "--events", os.fspath(events), "--audit", os.fspath(audit)) as gateway:
        gateway.initialize()
        where = ["--config", os.fspath(folder / "mcp.json")]
        assert {row["state"] for row in said("refresh", *where, code=1)["servers"]} == {"known", "failed"}
        said("accept", *where)
        assert said("call", "echo_echo", "text=hi", *where)["source"] == "gateway"
        said("call", "own_echo", "text=hi", *where)
        gateway.mcp(tool="own_echo", args={"text": "hi"})
        assert {row["scope"] for row in said("status", *where)["addresses"]} == {"session:stdio"}
        assert said("call", "nothing", *where, code=1)["error"]
        assert said("status", *where)["pid"] == gateway.process.pid
        (supervisor,) = said("tree", *where)["tree"]["children"]
        below = {node["name"]: [each["name"] for each in node["children"]] for node in supervisor["children"]}
        assert below == {"echo": [], "bad": [], "own": ["stdio"]}
        for words in (
            ["tools"],
            ["search", "echo"],
            ["describe", "echo_echo"],
            ["approve"],
            ["reconnect"],
        ):
            assert said(*words, *where)["source"] == "gateway"
        assert said("reconnect", "bad", *where, code=1)["servers"][0]["error"]
        assert said("status")["elsewhere"]
        for server in servers:
            said("explain", server, *where)
        said("doctor", *where, code=1)
        said("logs", "echo", *where)
    said("audit", "verify", os.fspath(audit), shape="audit verify")
    said("audit", "show", os.fspath(audit), shape="audit show")
    audit.write_bytes(audit.read_bytes()[:-9])
    said("audit", "verify", os.fspath(audit), shape="audit verify", code=1)


def test_each_kind_of_answer_to_a_call_has_its_shape(folder: Path, said: Said) -> None:
    gone = folder / "gone.py"
    shutil.copy(ECHO["args"][1], gone)
    servers = {
        "w": whole("w"),
        "echo": ECHO,
        "gone": {**ECHO, "args": ["-S", os.fspath(gone)]},
    }
    where = ["--config", os.fspath(folder / "mcp.json")]
    late = {"minMs": 600_000, "maxMs": 600_000}  # whatever a slow machine takes, "gone" is not tried again
    with serve(folder, servers, approve=["w_echo"], restartBackoff=late) as gateway:
        gateway.initialize()
        said("refresh", *where)
        gone.unlink()
        said("reconnect", "gone", *where, code=1)
        for tool in said("tools", "w", *where)["tools"]:
            said("describe", tool["name"], *where)
        for words, error in (
            (["w_echo", "text=hi"], "approval_required"),
            (["gone_echo"], "server_unavailable"),
            (["echo_ech"], "tool_not_found"),
            (["w_echo", "--server", "nope"], "server_not_found"),
            (["w_refuse"], "call_failed"),
            (["w_odd"], "tool_error"),
        ):
            code = 2 if error == "server_not_found" else 1
            assert said("call", *words, *where, code=code)["error"] == error
        assert said("call", "w_echo", "text=hi", "--yes", *where)["mode"] == "call"


def test_the_status_of_a_background_gateway_names_its_clients(folder: Path, said: Said) -> None:
    with background(folder, {"echo": ECHO}) as room, room.attach() as client:
        client.initialize()
        where = ["--config", os.fspath(room.config)]
        assert len(said("status", *where)["background"]["clients"]) == 1
        assert said("stop", *where)["ended"]


def test_the_status_of_a_gateway_over_http_names_its_sessions(folder: Path, said: Said) -> None:
    with served(folder, {"echo": ECHO}) as one:
        one.session()
        assert len(said("status", "--config", os.fspath(folder / "mcp.json"))["clients"]) == 1


def test_a_call_that_waits_and_the_answer_to_it_have_their_shapes(folder: Path, said: Said) -> None:
    where = ["--config", os.fspath(folder / "mcp.json")]
    with direct_door(folder, {"w": whole("w")}, approve=["echo"]) as door:
        door.initialize()
        door.ask("tools/list")
        said("approve", *where)
        number = door.send("tools/call", {"name": "w_echo", "arguments": {"text": "hi"}})
        while not (calls := said("approve", *where)["approvals"]):
            assert not door.is_answered(number)
            door.read(0.05)
        said("status", *where)
        said("approve", str(calls[0]["number"]), *where, shape="approve N")
        door.answer(number)


def test_each_line_that_is_followed_is_a_document(
    folder: Path, said: Said, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_config(folder, json.dumps({"mcpServers": {"bad": FAILS}}))
    said("refresh", code=1)

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs_command.time, "sleep", interrupt)
    assert run(["logs", "bad", "--follow", "--json"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert "no database" in [conforms("logs --follow", json.loads(line))["text"] for line in lines]


def test_a_name_that_two_servers_have_is_refused_with_both(folder: Path, said: Said) -> None:
    own_config(folder, json.dumps({"mcpServers": {"a": ECHO, "b": ECHO}, "settings": {"toolPrefix": "none"}}))
    said("refresh")
    for words in (["describe", "echo"], ["call", "echo"]):
        refused = said(*words, code=1)
        assert (refused["error"], len(refused["candidates"])) == ("ambiguous_tool", 2)
