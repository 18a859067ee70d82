"""The modes of the `mcp` tool: what they say, and the `details` beside it."""

from __future__ import annotations

import json
import os
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from tests.support import run
from tests.support.door_rooms import NOW, FakeRoom
from tests.support.numbers import numbers_of

from greenroom.gateway._jobs import Job
from greenroom.gateway._mcp_tool import DEFINITION, CatalogueReader, McpTool, Spill, ask, parse_request
from greenroom.gateway._mcp_tool._outcome import REST_LIMIT
from greenroom.gateway._mcp_tool._pages import Bounds
from greenroom.gateway._mcp_tool._texts import cut
from greenroom.protocol.errors import (
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    NeedsAuth,
    Reach,
    RemoteError,
    RoomClosed,
    ServerDown,
    SessionNeeded,
    TaskNeeded,
    Unavailable,
)
from greenroom.protocol.lifecycle import State
from greenroom.protocol.slices import finish
from greenroom.protocol.status import ServerStatus


class Sink:
    """Takes the answer of one job; spawning is refused, so a test that uses it proves that no task was needed."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.progress: list[Any] = []

    def job_done(self, job: Job, result: Any, error: Any) -> None:
        self.results.append(result if error is None else error)

    def job_raw(self, job: Job, result: bytes, *, modern: bool, filled: Any = None) -> None:
        raise AssertionError("the mcp tool answers in words of its own")

    def job_progress(self, job: Job, params: Any) -> None:
        self.progress.append(params)

    def job_broke(self, job: Job, error: Exception) -> None:
        raise error


def refuse_tasks(_work: Any) -> None:
    raise AssertionError("this request must not need a task")


def begin(room: FakeRoom, **arguments: Any) -> tuple[Sink, Job]:
    sink = Sink()
    job = Job(sink, refuse_tasks, b"1")
    job.token = "t" if arguments.pop("_progress", False) else None
    McpTool(room).begin(arguments, job)
    return sink, job


def asked(room: FakeRoom, **arguments: Any) -> tuple[str, dict[str, Any]]:
    result = anyio.run(ask, McpTool(room), arguments)
    return "\n".join(block.get("text", "") for block in result["content"]), result["_meta"][
        "greenroom/details"
    ]


def test_the_definition_fits_in_250_tokens_and_names_no_server() -> None:
    assert len(json.dumps(DEFINITION, separators=(",", ":"))) <= 1000
    assert set(DEFINITION["inputSchema"]["properties"]) == {
        *("tool", "args", "connect", "describe", "promote", "instructions", "search"),
        *("regex", "includeSchemas", "limit", "offset", "output", "server"),
    }


def test_every_parameter_has_a_description_and_the_or_of_words_is_said() -> None:
    parameters = DEFINITION["inputSchema"]["properties"]
    assert all(parameter["description"] for parameter in parameters.values())
    assert "OR'd" in parameters["search"]["description"]


def test_status_has_a_line_for_every_server_in_config_order() -> None:
    room = FakeRoom()
    room.rows["fresh"] = {"failed_ago": 12.4, "failure": "exited with code 3"}
    text, details = asked(room)
    assert text.splitlines() == [
        "MCP: 1/4 servers, 4 tools (1 disabled)",
        "",
        "○ github (3 tools, cached)",
        "✓ clock (1 tool)",
        "✗ fresh (failed 12s ago)",
        "⊘ off (disabled)",
        '✗ bad (broken: mcp.json: mcpServers.bad: needs "command" or "url")',
        "",
        'mcp({ server: "name" }) to list tools, mcp({ search: "..." }) to search',
    ]
    assert details["mode"] == "status"
    assert [server["status"] for server in details["servers"]] == [
        *("cached", "connected", "failed", "disabled", "broken")
    ]
    assert details["servers"][0] == {"name": "github", "status": "cached", "toolCount": 3}
    assert details["servers"][2]["failedAgo"] == 12
    assert (details["totalTools"], details["connectedCount"], details["disabledCount"]) == (4, 1, 1)


def test_status_prefers_connected_over_trouble_and_trouble_over_the_cache() -> None:
    room = FakeRoom()
    room.rows["github"] = {"needs_auth": True, "failed_ago": 3.0}
    room.rows["clock"] = {"state": State.CONNECTED, "failed_ago": 3.0}
    text, _ = asked(room)
    assert "⚠ github (needs auth)" in text
    assert "✓ clock (1 tool)" in text


def test_list_shows_names_short_descriptions_and_instructions() -> None:
    text, details = asked(FakeRoom(), server="github")
    assert text.startswith(
        "github (3 tools (not connected, cached)):\n\n- github_create_issue - Create a new issue"
    )
    assert text.endswith("Server instructions:\nBe kind to maintainers.")
    assert details["count"] == 3
    assert details["tools"] == [tool.name for tool in FakeRoom().index.tools("github")]


@pytest.mark.parametrize(
    ("server", "code", "text"),
    [
        ("nope", "server_not_found", 'Server "nope" not found. Use mcp({}) to see available servers.'),
        ("off", "server_disabled", 'Server "off" is disabled.'),
        ("bad", "config_error", 'Server "bad" cannot be used: mcp.json: mcpServers.bad'),
        (
            "fresh",
            "not_connected",
            'Server "fresh" is configured but not connected. Use mcp({ connect: "fresh" })',
        ),
    ],
)
def test_list_of_a_server_that_cannot_be_listed_says_why(server: str, code: str, text: str) -> None:
    said, details = asked(FakeRoom(), server=server)
    assert said.startswith(text)
    assert details["error"] == code


def test_an_empty_server_is_told_from_an_unknown_one() -> None:
    room = FakeRoom()
    room.learn("fresh")
    assert asked(room, server="fresh")[0] == 'Server "fresh" has no cached tools (not connected).'
    room.rows["fresh"] = {"state": State.CONNECTED}
    assert asked(room, server="fresh")[0] == 'Server "fresh" has no tools.'


def test_search_shows_parameters_unless_asked_not_to() -> None:
    text, details = asked(FakeRoom(), search="create issue")
    assert text.startswith(
        'Found 2 tools matching "create issue":\n\ngithub_create_issue\n  Create a new issue'
    )
    assert "  Parameters:\n    title (string) *required*" in text
    assert details["matches"][0]["tool"] == "github_create_issue"
    assert details["matches"][0]["server"] == "github"
    assert (details["count"], details["hasMore"], details["nextOffset"]) == (2, False, None)
    short, _ = asked(FakeRoom(), search="create issue", includeSchemas=False)
    assert "- github_create_issue - Create a new issue in a repository" in short
    assert "Parameters" not in short


def test_search_pages() -> None:
    text, details = asked(FakeRoom(), search="issue", limit=1)
    assert text.endswith("1 of 2 — offset: 1 for more")
    assert (details["hasMore"], details["nextOffset"]) == (True, 1)
    assert asked(FakeRoom(), search="issue", limit=1, offset=1)[0].endswith("1 of 2")


def test_search_by_pattern() -> None:
    _, details = asked(FakeRoom(), search="^GITHUB_(create|list)_", regex=True)
    assert {match["tool"] for match in details["matches"]} == {"github_create_issue", "github_list_issues"}


@pytest.mark.parametrize(
    ("query", "code", "text"),
    [
        ("(", "invalid_pattern", "Invalid regex: ("),
        ("x" * 257, "query_too_long", "Regex query is too long; maximum length is 256 characters."),
        (r"(a)\1", "unsafe_pattern", "Regex query rejected as unsafe ("),
        ("(?=a)", "unsafe_pattern", "Regex query rejected as unsafe ("),
        ("(x{1000}){1000}", "unsafe_pattern", "Regex query rejected as unsafe ("),
    ],
)
def test_patterns_that_are_refused(query: str, code: str, text: str) -> None:
    said, details = asked(FakeRoom(), search=query, regex=True)
    assert said.startswith(text)
    assert details["error"] == code


def test_a_pattern_that_backtracks_for_ever_elsewhere_is_linear_here() -> None:
    room = FakeRoom()
    room.learn("fresh", {**NOW, "name": "a" * 60, "description": "a" * 50_000 + "!"})
    assert asked(room, search="(a+)+$x", regex=True)[1]["count"] == 0


def test_search_without_words() -> None:
    assert asked(FakeRoom(), search="  ")[1]["error"] == "empty_query"
    text, details = asked(FakeRoom(), search="", server="clock")
    assert details["count"] == 1
    assert text.startswith("1 tool:")


def test_search_names_the_servers_that_may_yet_have_it() -> None:
    room = FakeRoom()
    room.rows["fresh"] = {"state": State.CONNECTING}
    text, details = asked(room, search="zebra")
    assert text == 'No tools matching "zebra" Server "fresh" is still connecting; retry in a moment.'
    assert details["connectingServers"] == ["fresh"]


def test_describe() -> None:
    text, details = asked(FakeRoom(), describe="github_create_issue")
    assert text.startswith(
        "github_create_issue\nServer: github\n\nCreate a new issue in a repository\n\nParameters:\n"
    )
    assert details["tool"]["inputSchema"]["required"] == ["title"]
    resource, _ = asked(FakeRoom(), describe="github_get_read_me")
    assert "Type: Resource (reads from file:///readme)" in resource
    assert resource.endswith("No parameters required (resource tool).")


def test_describe_of_an_unknown_tool_suggests() -> None:
    text, details = asked(FakeRoom(), describe="github_create_issues")
    assert text.startswith(
        'Tool "github_create_issues" not found. Use mcp({ search: "..." }) to search. Did you mean: github_create_issue'
    )
    assert details["error"] == "tool_not_found"


@pytest.mark.parametrize("mode", ["tool", "describe"])
@pytest.mark.parametrize(("name", "code"), [("off_x", "server_disabled"), ("bad-x", "config_error")])
def test_a_tool_of_a_server_that_cannot_be_used_is_refused_for_that(mode: str, name: str, code: str) -> None:
    text, details = asked(FakeRoom(), **{mode: name})
    assert details["error"] == code
    assert details["server"] == name[:3]
    assert text.startswith(f'Server "{name[:3]}" ')


def test_an_unknown_tool_of_a_known_server_is_answered_with_what_that_has(backend: str) -> None:
    room = FakeRoom()
    room.learn("fresh", *({**NOW, "name": f"at_{hour:02}"} for hour in range(70)))

    async def body() -> None:
        result = await ask(McpTool(room), {"tool": "fresh_at"})
        (block,) = result["content"]
        assert block["text"].startswith(
            'Tool "fresh_at" not found. Server "fresh" has: fresh_at_00, fresh_at_01, '
        )
        assert " and 10 more." in block["text"]
        assert result["_meta"]["greenroom/details"]["error"] == "tool_not_found"

    run(backend, body)


def test_instructions() -> None:
    assert asked(FakeRoom(), instructions="github")[0] == "github instructions:\n\nBe kind to maintainers."
    assert asked(FakeRoom(), instructions="clock")[1]["error"] == "no_instructions"
    assert asked(FakeRoom(), instructions="fresh")[1]["error"] == "not_connected"


def test_priority_and_empty_strings() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="clock_now", connect="github", describe="x", search="y", server="")
    room.calls[0].end({"content": []})
    assert sink.results[0]["_meta"]["greenroom/details"]["mode"] == "call"
    assert (
        asked(room, tool="", connect="", describe="github_list_issues", search="x")[1]["mode"] == "describe"
    )


# ---- calls ---------------------------------------------------------------------------------------------------------


def test_a_known_tool_is_called_without_a_task_whatever_form_its_args_have() -> None:
    room = FakeRoom()
    for args in ({"title": "x"}, '{"title": "x"}'):
        sink, _ = begin(room, tool="github_create_issue", args=args)
        assert room.calls[-1].arguments == {"title": "x"}
        assert room.calls[-1].target.original == "create_issue"
        assert not sink.results
        image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
        room.calls[-1].end(
            {"content": [{"type": "text", "text": "done"}, image], "structuredContent": {"n": 1}}
        )
        (result,) = sink.results
        assert result["content"] == [
            {"type": "text", "text": "done"},
            image,
            {"type": "text", "text": '{\n  "n": 1\n}'},
        ]
        assert "isError" not in result
        assert result["_meta"]["greenroom/details"] == {
            "mode": "call",
            "server": "github",
            "tool": "github_create_issue",
            "mcpResult": {"structuredContent": {"n": 1}},
        }


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("[1]", "Invalid args: expected a JSON object, got array."),
        ("null", "Invalid args: expected a JSON object, got null."),
        (7, "Invalid args: expected a JSON object, got number."),
        ("{", "Invalid args JSON: "),
        ("[" * 100_000, "Invalid args JSON: "),
    ],
)
def test_args_that_are_no_object_are_refused_by_name(args: Any, text: str) -> None:
    room = FakeRoom()
    (result,) = begin(room, tool="clock_now", args=args)[0].results
    assert result["content"][0]["text"].startswith(text)
    assert result["isError"] is True
    assert not room.calls


@pytest.mark.parametrize("name", ["github_create_issue", "github-create_issue"])
def test_args_that_are_no_object_are_refused_with_what_the_tool_expects(name: str) -> None:
    (result,) = begin(FakeRoom(), tool=name, args="[1]")[0].results
    text = result["content"][0]["text"]
    assert "got array.\n\nExpected parameters:\ntitle (string) *required*" in text
    assert result["_meta"]["greenroom/details"]["tool"] == "github_create_issue"


def test_nothing_is_said_twice_of_an_error_of_a_gateway_behind_this_one() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="github_create_issue")
    said = "Error: no title\n\nExpected parameters:\ntitle (string)"
    room.calls[0].end({"content": [{"type": "text", "text": said}], "isError": True})
    assert sink.results[0]["content"][0]["text"] == said
    sink, _ = begin(room, tool="github_create_issue")
    room.calls[1].fail(RemoteError("Failed to call tool: no", server="github", rpc_code=-32602))
    assert sink.results[0]["content"][0]["text"].startswith("Failed to call tool: no\n\nExpected")


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("fresh", failed_ago=7, retry_in=23),
        NeedsAuth('Server "fresh" needs a login.', server="fresh"),
        ConnectFailed("exited with code 3.", server="fresh"),
    ],
)
def test_a_connect_that_was_not_done_is_an_error_and_names_the_server_once(
    error: CallError, backend: str
) -> None:
    room = FakeRoom()
    room.refuse = error

    async def body() -> dict[str, Any]:
        return dict(await ask(McpTool(room), {"connect": "fresh"}))

    result = run(backend, body)
    assert result["isError"] is True
    assert result["content"][0]["text"].count('"fresh"') == 1


def test_no_hidden_character_of_a_definition_reaches_a_model() -> None:
    hidden = "\U000e0041\u202e\u200b\x1b[8m\u2063"
    schema = {"type": "object", "properties": {"zone": {"type": "string", "description": f"a{hidden}b"}}}
    room = FakeRoom()
    room.learn("clock", {**NOW, "description": f"The{hidden} time", "inputSchema": schema})
    texts = [
        asked(room, describe="clock_now")[0],
        asked(room, search="time")[0],
        asked(room, server="clock")[0],
        begin(room, tool="clock_now", args=7)[0].results[0]["content"][0]["text"],
    ]
    sink, _ = begin(room, tool="clock_now")
    room.calls[0].end({"content": [], "isError": True})
    texts.append(sink.results[0]["content"][0]["text"])
    assert not ({*hidden} - {*"[8m"}) & {*"".join(texts)}
    assert "The time" in texts[0]
    assert "ab" in texts[4]


def test_parameters_nested_in_args_are_pointed_out() -> None:
    assert asked(FakeRoom(), args={"tool": "clock_now"})[0].startswith(
        "Gateway params were nested inside `args`; pass them top-level"
    )


def test_a_tool_error_carries_the_expected_parameters() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="github_create_issue")
    room.calls[0].end({"content": [{"type": "text", "text": "title missing"}], "isError": True})
    (result,) = sink.results
    assert result["isError"] is True
    assert result["_meta"]["greenroom/details"]["error"] == "tool_error"
    text = result["content"][0]["text"]
    assert text.startswith("Error: title missing\n\nExpected parameters:\ntitle (string) *required*")


def test_an_rpc_error_and_a_timeout_are_failed_calls_that_say_how_far_they_got() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="github_create_issue")
    room.calls[0].fail(RemoteError("Invalid arguments", server="github", rpc_code=-32602))
    text = sink.results[0]["content"][0]["text"]
    assert text.startswith("Failed to call tool: Invalid arguments\n\nExpected parameters:\ntitle")
    assert sink.results[0]["_meta"]["greenroom/details"]["error"] == "call_failed"
    sink, _ = begin(room, tool="github_create_issue")
    room.calls[1].fail(
        CallTimeout(f"No answer in 60s; {Reach.SENT.words}.", server="github", reach=Reach.SENT, timeout=60)
    )
    text = sink.results[0]["content"][0]["text"]
    assert text.startswith(
        "Failed to call tool: No answer in 60s; the call was sent and may have run.\n\nExpected"
    )
    assert sink.results[0]["_meta"]["greenroom/details"]["reach"] == "sent"
    assert sink.results[0]["isError"] is True


def test_a_server_in_backoff_is_refused_as_unavailable() -> None:
    room = FakeRoom()
    room.refuse = Unavailable("clock", failed_ago=7, retry_in=23)
    text, details = asked(room, tool="clock_now")
    assert text.startswith('Server "clock" not available (failed 7s ago)')
    assert (details["error"], details["failedAgo"], details["retryIn"]) == ("server_unavailable", 7, 23)


def test_a_busy_server_explains_itself() -> None:
    room = FakeRoom()
    room.refuse = Busy("clock", in_flight=256, queued=1024, oldest_age=3.0, retry_after=1.5)
    text, details = asked(room, tool="clock_now")
    assert "256 calls in flight, 1024 queued" in text
    assert (details["error"], details["retryIn"]) == ("server_busy", 1.5)


@pytest.mark.parametrize("kind", [ServerDown, NeedsAuth, SessionNeeded, TaskNeeded, RoomClosed])
def test_t50_every_refusal_of_a_call_is_an_error(kind: type[CallError]) -> None:
    room = FakeRoom()
    room.refuse = kind(f"Not now; {Reach.NOT_SENT.words}.", server="clock")
    (result,) = begin(room, tool="clock_now")[0].results
    assert result["isError"] is True
    assert "structuredContent" not in result
    assert "the call was not sent" in result["content"][0]["text"]


def test_an_answer_that_is_no_object_fails_the_call() -> None:
    for raw in (b"[1]", b"nonsense", b"[" * 100_000):
        room = FakeRoom()
        sink, _ = begin(room, tool="clock_now")
        room.calls[0].end(raw)
        assert sink.results[0]["_meta"]["greenroom/details"]["error"] == "protocol_error"


def test_a_tool_that_vanished_when_its_server_connected() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="clock_now")
    room.learn("clock", {**NOW, "name": "today"})
    room.calls[0].fail(RemoteError("Unknown tool", server="clock", rpc_code=-32602))
    (result,) = sink.results
    assert result["_meta"]["greenroom/details"]["error"] == "tool_not_found_after_reconnect"
    assert result["content"][0]["text"].startswith(
        'Tool "clock_now" not found on "clock" after reconnect. Available tools on "clock": clock_today.'
    )


def test_calls_that_name_no_tool_or_no_server() -> None:
    room = FakeRoom()
    assert asked(room, tool="zebra")[1]["error"] == "tool_not_found"
    assert asked(room, tool="clock_now", server="nope")[1]["error"] == "server_not_found"
    assert asked(room, tool="off_x", server="off")[1]["error"] == "server_disabled"


def test_t18_an_ambiguous_name_is_refused_with_its_candidates() -> None:
    room = FakeRoom()
    room.learn("clock", {**NOW, "name": "a-b"}, {**NOW, "name": "a_b"})
    exact, _ = begin(room, tool="clock_a_b")
    assert not exact.results, "an exact name beats one that is equal but for a hyphen"
    names = [target.name for target in room.index.tools("clock")]
    assert len(set(names)) == 2


def test_progress_is_passed_on_only_when_asked_for() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="clock_now", _progress=True)
    room.calls[0].on_progress({"progress": 1})
    assert sink.progress == [{"progress": 1}]
    begin(room, tool="clock_now")
    assert room.calls[1].on_progress is None


def test_t21_cancelling_a_job_cancels_its_call_and_drops_a_late_answer() -> None:
    room = FakeRoom()
    sink, job = begin(room, tool="clock_now")
    job.cancel()
    assert room.calls[0].cancelled
    room.calls[0].end({"content": []})
    assert not sink.results


# ---- what needs a task ---------------------------------------------------------------------------------------------


def ask_on(backend: str, room: FakeRoom, **arguments: Any) -> tuple[str, dict[str, Any]]:
    async def body() -> Any:
        return await ask(McpTool(room), arguments)

    result = run(backend, body)
    return result["content"][0]["text"], result["_meta"]["greenroom/details"]


def test_connect_lists_what_it_found(backend: str) -> None:
    room = FakeRoom()
    room.on_connect = lambda server: room.learn(server, {**NOW, "name": "hello"})
    text, details = ask_on(backend, room, connect="fresh")
    assert room.connected == ["fresh"]
    assert text.startswith("fresh (1 tool")
    assert details["tools"] == ["fresh_hello"]


def test_a_failed_connect_says_why(backend: str) -> None:
    room = FakeRoom()
    room.refuse = ConnectFailed('command "x" not found. Install it or correct "command".', server="fresh")
    text, details = ask_on(backend, room, connect="fresh")
    assert text == 'Failed to connect to "fresh": command "x" not found. Install it or correct "command".'
    assert details["error"] == "connect_failed"


def test_an_unknown_name_connects_the_server_it_may_be_of(backend: str) -> None:
    room = FakeRoom()
    room.on_connect = lambda server: room.learn(server, {**NOW, "name": "hello"})
    text, details = ask_on(backend, room, tool="fresh_hello")
    assert text == "fresh_hello ran"
    assert details["server"] == "fresh"


def test_an_unknown_name_that_stays_unknown(backend: str) -> None:
    room = FakeRoom()
    room.on_connect = lambda server: room.learn(server, {**NOW, "name": "hello"})
    text, details = ask_on(backend, room, tool="fresh_bye", server="fresh")
    assert details["error"] == "tool_not_found_after_reconnect"
    assert 'Available tools on "fresh": fresh_hello.' in text


def test_t19_a_huge_text_is_cut_and_kept_in_a_private_file(backend: str, tmp_path: Any) -> None:
    room = FakeRoom()
    full = "line of text\n" * 40_000
    room.answer = {
        "content": [{"type": "text", "text": full}, {"type": "image", "data": "x", "mimeType": "image/png"}]
    }

    async def body() -> Any:
        return await ask(McpTool(room, spill=Spill(tmp_path / "out")), {"tool": "clock_now"})

    result = run(backend, body)
    report = result["_meta"]["greenroom/details"]["outputGuard"]
    (kept,) = (tmp_path / "out").iterdir()
    assert report["truncated"] is True
    assert report["fullOutputPath"] == str(kept)
    assert kept.read_text() == full
    assert kept.stat().st_mode & 0o777 == 0o600
    assert str(kept) in result["content"][0]["text"]
    assert len(result["content"][0]["text"].encode()) <= 51_200
    assert result["content"][-1] == {"type": "image", "data": "x", "mimeType": "image/png"}


def test_a_spill_that_cannot_be_written_says_so(backend: str, tmp_path: Any) -> None:
    room = FakeRoom()
    room.answer = {"content": [{"type": "text", "text": "x" * 100_000}]}
    (tmp_path / "out").write_text("a file where the directory should be")

    async def body() -> Any:
        return await ask(McpTool(room, spill=Spill(tmp_path / "out")), {"tool": "clock_now"})

    result = run(backend, body)
    assert "could not be saved" in result["content"][0]["text"]
    assert result["_meta"]["greenroom/details"]["outputGuard"]["writeError"]


def test_spilled_files_go_by_age_and_by_size(tmp_path: Any) -> None:
    spill = Spill(tmp_path, max_age=100, max_total=25, clock=lambda: 1000.0)
    old, fits, too_much = (Spill(tmp_path).write(name * 10) for name in "abc")
    for path, stamp in ((old, 890), (fits, 990), (too_much, 980)):
        os.utime(path, (stamp, stamp))
    newest = spill.write("d" * 10)
    assert set(tmp_path.iterdir()) == {newest, fits}


def test_a_file_that_alone_is_more_than_may_be_kept_stays_until_the_next(tmp_path: Any) -> None:
    now = [1000.0]
    spill = Spill(tmp_path, max_age=100, max_total=5, clock=lambda: now[0])
    fat = spill.write("x" * 10)
    os.utime(fat, (1000, 1000))
    assert set(tmp_path.iterdir()) == {fat}
    assert fat.stat().st_mode & 0o777 == 0o600
    now[0] = 1001.0
    after = spill.write("y")
    assert set(tmp_path.iterdir()) == {after}


def test_what_a_result_says_beside_its_content_is_shown_up_to_the_last_byte() -> None:
    empty = len(json.dumps({"_meta": {"x": ""}}, separators=(",", ":")))
    room = FakeRoom()
    sink, _ = begin(room, tool="clock_now")
    said = {"x": "y" * (REST_LIMIT - empty)}
    room.calls[0].end({"content": [{"type": "text", "text": "ok"}], "_meta": said})
    assert sink.results[0]["_meta"]["greenroom/details"]["mcpResult"] == {"_meta": said}


@pytest.mark.parametrize("more", [1, 20_000])
def test_what_does_not_fit_the_details_is_kept_in_a_file(backend: str, tmp_path: Any, more: int) -> None:
    room = FakeRoom()
    structured = {"x": "y" * (REST_LIMIT - len('{"structuredContent":{"x":""}}') + more)}
    room.answer = {"content": [{"type": "text", "text": "ok"}], "structuredContent": structured}

    async def body() -> Any:
        return await ask(McpTool(room, spill=Spill(tmp_path / "out")), {"tool": "clock_now"})

    rest = run(backend, body)["_meta"]["greenroom/details"]["mcpResult"]
    assert (rest["omitted"], rest["rawResultBytes"]) == (True, REST_LIMIT + more)
    (kept,) = (tmp_path / "out").iterdir()
    assert rest["savedTo"] == str(kept)
    assert kept.suffix == ".json"
    assert json.loads(kept.read_text()) == {"structuredContent": structured}


def test_what_is_neither_shown_nor_can_be_kept_says_so(backend: str, tmp_path: Any) -> None:
    room = FakeRoom()
    room.answer = {"content": [], "_meta": {"x": "y" * REST_LIMIT}}
    (tmp_path / "out").write_text("a file where the directory should be")

    async def body() -> Any:
        return await ask(McpTool(room, spill=Spill(tmp_path / "out")), {"tool": "clock_now"})

    rest = run(backend, body)["_meta"]["greenroom/details"]["mcpResult"]
    assert rest["omitted"] is True
    assert rest["writeError"]


# ---- thousands of tools ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [{"search": "zebra"}, {"search": "^x", "regex": True}, {"tool": "zebra"}, {"describe": "clock_zebra"}],
)
def test_others_have_their_turn_while_thousands_of_tools_are_searched(
    asked: dict[str, Any], backend: str
) -> None:
    room = FakeRoom()
    room.learn("clock", *({**NOW, "name": f"tool_{number}"} for number in range(3_000)))

    async def body() -> int:
        turns = first = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as group:
            group.start_soon(count)
            await ask(McpTool(room), asked)
            first = turns
            group.cancel_scope.cancel()
        return first

    assert run(backend, body) >= 30


def test_two_who_search_at_first_share_the_work(backend: str) -> None:
    room = FakeRoom()
    room.learn("clock", *({**NOW, "name": f"tool_{number}"} for number in range(1_000)))

    async def body() -> list[Any]:
        found: list[Any] = []

        async def look() -> None:
            result = await ask(McpTool(room), {"search": "tool 7"})
            found.append((room.index.ranking, result["_meta"]["greenroom/details"]["count"]))

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            group.start_soon(look)
        return found

    one, other = run(backend, body)
    assert one[0] is other[0]
    assert one[1] == other[1] == 1_000


def test_describe_shows_annotations_and_what_it_returns() -> None:
    room = FakeRoom()
    output = {"type": "object", "properties": {"time": {"type": "string"}}, "required": ["time"]}
    more = {"annotations": {"readOnlyHint": True, "title": "Now"}, "outputSchema": output, "title": "Now!"}
    room.learn("clock", {**NOW, **more})
    text, details = asked(room, describe="clock_now")
    assert 'Annotations: readOnlyHint: true, title: "Now"' in text
    assert "Returns:\ntime (string) *required*" in text
    assert {key: details["tool"][key] for key in more} == more
    room.learn("clock", {**NOW, "annotations": 7, "outputSchema": []})
    assert "Returns" not in asked(room, describe="clock_now")[0]


def test_an_unknown_server_is_answered_with_those_there_are() -> None:
    assert asked(FakeRoom(), server="nope")[0].endswith("Configured: github, clock, fresh, off, bad.")


# ---- pages, by themselves ----------------------------------------------------------------------------------------

AROUND, LINES_AROUND = 1_024, 16  # kept free for what stands around a list


def test_entries_fit_by_bytes_to_the_last_one() -> None:
    bounds = Bounds(max_bytes=AROUND + 10)
    assert bounds.fitting(["aaaa", "bbbb", "c"]) == ["aaaa", "bbbb"]  # with a line's end each
    assert bounds.fitting(["aaaa", "bbbbb", "c"]) == ["aaaa"]
    assert bounds.fitting(["ää", "öö"]) == ["ää", "öö"], "as UTF-8"
    assert bounds.fitting(["ää", "ööö"]) == ["ää"]
    assert bounds.fitting(["aaa", "bbb", "c"], "\n\n") == ["aaa", "bbb"]
    assert bounds.fitting([]) == []


def test_entries_fit_by_lines_to_the_last_one() -> None:
    bounds = Bounds(max_lines=LINES_AROUND + 4)
    assert bounds.fitting(list("abcde")) == list("abcd")
    assert bounds.fitting(["a\nb", "c", "d", "e"]) == ["a\nb", "c", "d"]
    assert bounds.fitting(list("abc"), "\n\n") == list("ab"), "an empty line between them counts"
    assert Bounds().fitting(["a\n" * 10_000]) == ["a\n" * 10_000]


def test_one_entry_that_fits_no_page_is_cut_and_says_so() -> None:
    (cut,) = Bounds(max_bytes=AROUND + 100).fitting(["ä" * 500, "b"])
    assert cut.endswith("… (cut here; describe it for the rest)")
    assert 98 <= len(cut.encode()) <= 100
    (cut,) = Bounds(max_lines=LINES_AROUND + 2).fitting(["a\nb\nc\nd", "e"])
    assert cut.split("…")[0] == "a\nb"
    assert Bounds(max_bytes=1).fitting(["a" * 50])[0].startswith("… (cut")


def test_a_page_says_how_to_go_on_and_details_have_only_what_is_shown() -> None:
    room = FakeRoom(output_max_bytes=AROUND + 20)
    room.learn("fresh", *({"name": f"tool{n}", "inputSchema": {}} for n in range(4)))
    text, details = asked(room, server="fresh", offset=1)
    assert (details["tools"], details["count"]) == (["fresh_tool1"], 4)
    assert (details["hasMore"], details["nextOffset"]) == (True, 2)
    assert "1 of 4 — offset: 2 for more" in text
    text, details = asked(room, server="fresh", offset=3)
    assert (details["tools"], details["hasMore"], details["nextOffset"]) == (["fresh_tool3"], False, None)
    assert "1 of 4" in text
    assert "for more" not in text
    text, details = asked(room, search="tool", server="fresh", includeSchemas=False)
    assert [match["tool"] for match in details["matches"]] == ["fresh_tool0"]
    assert (details["count"], details["nextOffset"]) == (4, 1)
    text, details = asked(room, offset=1, limit=2)
    assert [server["name"] for server in details["servers"]] == ["clock"]
    assert "nextOffset" in details


def test_what_is_disabled_is_not_counted_and_a_long_query_is_not_repeated() -> None:
    room = FakeRoom()
    room.rows["off"] = {"tool_count": 100}
    text, details = asked(room)
    assert details["totalTools"] == 4
    assert text.startswith("MCP: 1/4 servers, 4 tools (1 disabled)")
    text, details = asked(room, search="zebra " * 100)
    assert len(details["query"]) <= 203
    assert len(text) < 400


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a" * 10, "a" * 10),
        ("a" * 11, "a" * 10 + "..."),
        ("aaaaaa bbbbb", "aaaaaa bbb..."),  # the space is too far in front
        ("aaaaaaa bbbbb", "aaaaaaa..."),
        ("a" * 10 + " b", "a" * 10 + "..."),
    ],
)
def test_a_text_is_cut_at_a_space_that_is_near(text: str, shown: str) -> None:
    assert cut(text, 10) == shown


def test_the_shared_address_stands_for_a_server_and_a_session_only_where_it_is_alone() -> None:
    room = FakeRoom()
    rows = {
        "github": [("session:a", 2), ("shared", 1)],
        "clock": [("session:a", 3), ("session:b", 4)],
    }

    def status() -> list[ServerStatus]:
        return [
            ServerStatus(name, scope=scope, tool_count=count)
            for name, found in rows.items()
            for scope, count in found
        ]

    room.status = status
    for _ in range(2):
        found = {row.server: row.tool_count for row in finish(CatalogueReader(room).rows())}
        assert found == {"github": 1, "clock": 3, "bad": None}
        rows["github"].reverse()


def test_the_longest_prefix_says_whose_a_tool_would_be() -> None:
    room = FakeRoom()
    names = ("off_a", "off-a-more")  # "_" comes after "-"
    others = {name: attrs.evolve(room.config.servers["off"], name=name) for name in names}
    room.config = attrs.evolve(room.config, servers={**room.config.servers, **others})
    room.reindex()
    _, details = asked(room, describe="off_a_more_x")
    assert (details["error"], details["server"]) == ("server_disabled", "off-a-more")


def test_a_tool_of_another_server_than_the_one_named_is_not_called() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="github_create_issue", server="off", args={"title": "x"})
    assert room.calls == []
    assert sink.results[0]["isError"]


@pytest.mark.parametrize(
    "request_",
    [{}, {"search": "issue"}, {"describe": "nobodys_tool"}, {"server": "far7"}, {"offset": 5_900}],
    ids=str,
)
def test_t36_whatever_is_asked_of_thousands_of_servers_is_answered_in_slices(
    request_: dict[str, Any],
) -> None:
    def slices(room: FakeRoom) -> int:
        return sum(1 for _ in CatalogueReader(room).answering(parse_request(request_)))

    few = slices(FakeRoom())
    room = FakeRoom()
    far = attrs.evolve(room.config.servers["off"], disabled=False)
    more = {f"far{number}": attrs.evolve(far, name=f"far{number}") for number in range(6_000)}
    room.config = attrs.evolve(room.config, servers={**room.config.servers, **more})
    room.reindex()

    assert few <= 2, "where there is little, it is answered at once"
    if request_ != {"server": "far7"}:  # nothing of the others is looked at
        assert slices(room) > few + 2


def test_the_numbers_are_those_that_were_decided() -> None:
    found = numbers_of("gateway/_mcp_tool/*")
    assert found == {
        "_mcp_tool._answer.DETAILS_LIMIT": 50 << 10,
        "_mcp_tool._answers._FOR_A_NOTICE": 300,
        "_mcp_tool._binaries._SIDES": (1568, 1024, 512),
        "_mcp_tool._binaries._LOOKED_AT": 1000,
        "_mcp_tool._binaries._MOST_PIXELS": 50_000_000,
        "_mcp_tool._definition.PAGE": 12,
        "_mcp_tool._definition.MOST_MATCHES": 100,
        "_mcp_tool._definition.MOST_LINES": 500,
        "_mcp_tool._definition.MAX_REGEX": 256,
        "_mcp_tool._large_call._PIECE": 64 << 10,
        "_mcp_tool._outcome.REST_LIMIT": 16 << 10,
        "_mcp_tool._outcome.KEPT_LIMIT": 8 << 20,
        "_mcp_tool._pages._AROUND": 1024,
        "_mcp_tool._pages._LINES_AROUND": 16,
        "_mcp_tool._patterns._MEMORY": 1 << 20,
        "_mcp_tool._reader._A_PIECE": 20,
        "_mcp_tool._reader._SEEN": 200,
        "_mcp_tool._refusals.SHOWN_ID": 40,
        "_mcp_tool._refusals._LONGEST_NAME": 256,
        "_mcp_tool._spill.DAY": 86400.0,
        "_mcp_tool._spill.MAX_TOTAL": 100 << 20,
        "_mcp_tool._spill._AT_ONCE": 1 << 20,
        "_mcp_tool._texts.SHORT": 50,
        "_mcp_tool._texts.PREVIEW": 300,
        "_mcp_tool._texts.MOST_PROBLEMS": 5,
        "_mcp_tool._texts.SHOWN_QUERY": 200,
        "_mcp_tool._texts._SEEN": 200,
        "_mcp_tool._texts._A_PIECE": 40,
        "_mcp_tool._unknown._MOST": 20,
        "_mcp_tool._unknown._MOST_DETAILED": 500,
    }
