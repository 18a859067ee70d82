"""The modes of the `mcp` tool: what they say, and the `details` beside it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from tests.support import in_real_time, run
from tests.support.door_rooms import NOW, FakeRoom, Hiding, KnownRoom
from tests.support.patience import PATIENCE
from tests.support.rows import for_each

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.store import CatalogueFile, catalogue_keys
from greenroom.config.model import Scrub
from greenroom.config.parse import parse_config
from greenroom.gateway.control_methods import commands
from greenroom.gateway.exposures.mcp_tool import McpTool, ask
from greenroom.gateway.exposures.output_files import Spill
from greenroom.gateway.exposures.query_modes import CatalogueReader
from greenroom.gateway.exposures.result_texts import REST_LIMIT
from greenroom.gateway.exposures.tool_definition import (
    DEFINITION,
    FOR_META,
    FOR_MODELS,
    FOR_PEOPLE,
    Hints,
    Mode,
    parse_request,
)
from greenroom.gateway.exposures.tool_texts import Bounds, cut
from greenroom.gateway.input_required import SuspendedCalls
from greenroom.gateway.jobs import Job
from greenroom.protocol.errors import (
    UNTRUSTED,
    ApprovalDenied,
    BadArguments,
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    Drained,
    InputRefused,
    NeedsAuth,
    Problem,
    ProtocolFault,
    Reach,
    RemoteError,
    RoomClosed,
    ServerDown,
    ServerLost,
    SessionNeeded,
    ToolChanged,
    Unavailable,
    UnknownServer,
    UsageError,
)
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus
from greenroom.supervisor.room import Greenroom, port_of


def plain(value: Any) -> Any:
    """A member of an answer, which may be JSON already."""
    return json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else value


class Sink:
    """Takes the answer of one job; spawning is refused, so a test that uses it proves that no task was needed."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.progress: list[Any] = []

    def job_done(self, job: Job, result: Any, error: Any) -> None:
        parts = {} if error is not None else {name: plain(each) for name, each in result.items()}
        self.results.append(parts if error is None else error)

    def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
        raise AssertionError("the mcp tool answers in words of its own")

    def line_for(self, job: Job, result: Any, *, is_large: bool = False) -> bytes:
        raise AssertionError("no answer here holds megabytes")

    def job_line(self, job: Job, line: bytes) -> None:
        raise AssertionError("the mcp tool answers in words of its own")

    def job_progress(self, job: Job, params: Any) -> None:
        self.progress.append(params)

    def job_broke(self, job: Job, error: Exception) -> None:
        raise error


def refuse_tasks(_work: Any) -> None:
    raise AssertionError("this request must not need a task")


def begin(room: FakeRoom, *, hints: Hints = FOR_MODELS, **arguments: Any) -> tuple[Sink, Job]:
    sink = Sink()
    job = Job(sink, refuse_tasks, b"1")
    job.token = "t" if arguments.pop("_progress", False) else None
    McpTool(room, hints=hints).begin(arguments, job)
    return sink, job


def result_of(
    room: FakeRoom | KnownRoom, *, spill: Spill | None = None, hints: Hints = FOR_MODELS, **arguments: Any
) -> dict[str, Any]:
    if isinstance(room, KnownRoom):
        return room.result_of(arguments, spill=spill, hints=hints)
    return dict(anyio.run(ask, McpTool(room, spill=spill, hints=hints), arguments))


def details_of(result: Mapping[str, Any]) -> dict[str, Any]:
    return result["_meta"]["greenroom/details"]


def asked(room: FakeRoom | KnownRoom, **arguments: Any) -> tuple[str, dict[str, Any]]:
    result = result_of(room, **arguments)
    return "\n".join(block.get("text", "") for block in result["content"]), details_of(result)


def test_the_definition_fits_in_290_tokens_and_names_no_server() -> None:
    assert len(json.dumps(DEFINITION, separators=(",", ":"))) <= 1160
    assert set(DEFINITION["inputSchema"]["properties"]) == {
        *("tool", "args", "connect", "describe", "promote", "instructions", "skill", "search"),
        *("regex", "includeSchemas", "limit", "offset", "output", "server", "background"),
    }


def test_every_parameter_has_a_description_and_the_or_of_words_is_said() -> None:
    parameters = DEFINITION["inputSchema"]["properties"]
    assert all(parameter["description"] for parameter in parameters.values())
    assert "OR'd" in parameters["search"]["description"]


def test_no_parameter_is_required_of_an_agent_that_requires_what_is_not_nullable() -> None:
    """As smolagents' agents do: `make world` plays one."""
    parameters = DEFINITION["inputSchema"]["properties"]
    assert all(parameter["nullable"] is True for parameter in parameters.values())
    assert "required" not in DEFINITION["inputSchema"]


@for_each("given", [{}, {"search": "pulls"}, {"describe": "clock_now"}, {"server": "clock"}])
def test_null_counts_as_absent_for_every_parameter(given: dict[str, Any]) -> None:
    nulls = dict.fromkeys(DEFINITION["inputSchema"]["properties"])
    assert asked(KnownRoom(), **(nulls | given)) == asked(KnownRoom(), **given)


def test_status_has_a_line_for_every_server_in_config_order() -> None:
    room = FakeRoom()
    room.rows["fresh"] = {"failed_ago": 12.4, "failure": "exited with code 3"}
    text, details = asked(room)
    assert text.splitlines() == [
        "MCP: 1/4 servers, 4 tools (1 disabled)",
        "",
        "○ github (3 tools, cached)",
        "✓ clock (1 tool)",
        "✗ fresh (failed 12 s ago)",
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


@for_each(
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
    said, details = asked(KnownRoom(), server=server)
    assert said.startswith(text)
    assert details["error"] == code


@pytest.mark.parametrize("query", ["do", "do it", "do xyzzy"])
def test_search_finds_a_tool_whose_name_is_a_word_that_says_nothing_elsewhere(query: str) -> None:
    room = KnownRoom()
    room.learn("clock", {**NOW, "name": "do"})
    _, details = asked(room, search=query)
    assert details["matches"][0]["tool"] == "clock_do"


def test_search_by_pattern() -> None:
    _, details = asked(KnownRoom(), search="^GITHUB_(create|list)_", regex=True)
    assert {match["tool"] for match in details["matches"]} == {"github_create_issue", "github_list_issues"}


@for_each(
    ("query", "code", "text"),
    [
        ("(", "invalid_pattern", 'Invalid regex "(": missing ), unterminated subpattern at position 0.'),
        ("x" * 257, "query_too_long", "Regex query is too long; maximum length is 256 characters."),
        (r"(a)\1", "unsafe_pattern", "Regex query rejected as unsafe ("),
        ("(?=a)", "unsafe_pattern", "Regex query rejected as unsafe ("),
        ("(x{1000}){1000}", "unsafe_pattern", "Regex query rejected as unsafe ("),
        ("(?<=a)", "unsafe_pattern", "Regex query rejected as unsafe (invalid perl operator: (?<=)."),
        ("\ud800", "invalid_pattern", r'Invalid regex "\ud800": it has half'),
    ],
)
def test_patterns_that_are_refused(query: str, code: str, text: str) -> None:
    said, details = asked(KnownRoom(), search=query, regex=True)
    assert said.startswith(text)
    assert details["error"] == code


def test_a_pattern_that_backtracks_for_ever_elsewhere_is_linear_here() -> None:
    room = KnownRoom()
    room.learn("fresh", {**NOW, "name": "a" * 60, "description": "a" * 50_000 + "!"})
    assert asked(room, search="(a+)+$x", regex=True)[1]["count"] == 0


def test_search_without_words() -> None:
    assert asked(KnownRoom(), search="  ")[1]["error"] == "empty_query"
    text, details = asked(KnownRoom(), search="", server="clock")
    assert details["count"] == 1
    assert text.startswith("1 tool:")


def test_describe_of_an_unknown_tool_suggests() -> None:
    text, details = asked(KnownRoom(), describe="github_create_issues")
    assert text.startswith(
        'Tool "github_create_issues" not found. Use mcp({ search: "..." }) to search. Did you mean: github_create_issue'
    )
    assert details["error"] == "tool_not_found"


def test_a_model_that_takes_a_server_for_a_tool_is_given_no_command() -> None:
    text, details = asked(KnownRoom(), describe="clock")
    assert (details["error"], "greenroom" in text) == ("tool_not_found", False), text


@for_each("mode", ["tool", "describe"])
@for_each(("name", "code"), [("off_x", "server_disabled"), ("bad-x", "config_error")])
def test_a_tool_of_a_server_that_cannot_be_used_is_refused_for_that(mode: str, name: str, code: str) -> None:
    text, details = asked(KnownRoom(), **{mode: name})
    assert details["error"] == code
    assert details["server"] == name[:3]
    assert text.startswith(f'Server "{name[:3]}" ')


def test_an_unknown_tool_of_a_known_server_is_answered_with_what_that_has() -> None:
    room = KnownRoom()
    room.learn("fresh", *({**NOW, "name": f"at_{hour:02}"} for hour in range(70)))
    text, details = asked(room, tool="fresh_at")
    assert ("fresh_at_00, fresh_at_01, " in text, " and 10 more." in text) == (True, True)
    assert details["error"] == "tool_not_found_after_reconnect"


def test_a_search_costs_little_and_shows_the_parameters_of_the_first_three() -> None:
    room = KnownRoom()
    words = "What it is for, at length, with all that there is to say about it. " * 4
    properties = {f"p{number:02}": {"type": "string", "description": words} for number in range(40)}
    schema = {"type": "object", "properties": properties, "required": ["p00", "p39"]}
    room.learn(
        "fresh",
        *(
            {"name": f"widget_{number:02}", "description": words, "inputSchema": schema}
            for number in range(30)
        ),
    )
    text, details = asked(room, search="widget")
    assert len(details["matches"]) == 12
    assert len(text) <= 4 * 800, "characters of 800 tokens"
    first, second, third, others = text.split("\n\n")[1:5]
    for entry, match in zip((first, second, third), details["matches"], strict=False):
        lines = entry.splitlines()
        assert lines[0] == match["tool"]
        assert lines[2] == "  Parameters:"
        assert {line.split()[0] for line in lines if "*required*" in line} == {"p00", "p39"}
        assert lines[-1] == f'    (more: mcp({{ describe: "{match["tool"]}" }}))'
    assert [line.split(" - ")[0] for line in others.splitlines()] == [
        f"- {match['tool']}" for match in details["matches"][3:]
    ]
    assert asked(room, search="widget", includeSchemas=False)[0].count("Parameters:") == 0
    assert asked(room, search="widget", includeSchemas=True)[0].count("Parameters:") > 3
    small, _ = asked(room, search="create issue", limit=1)
    assert "more: " not in small, "what is short is shown whole"


def test_instructions_are_those_of_a_server_that_has_some() -> None:
    assert asked(KnownRoom(), instructions="github")[0] == "github instructions:\n\nBe kind to maintainers."
    for server, code in (
        ("clock", "no_instructions"),
        ("fresh", "not_connected"),
        ("off", "server_disabled"),
    ):
        assert asked(KnownRoom(), instructions=server)[1]["error"] == code


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
        assert details_of(result) == {
            "mode": "call",
            "server": "github",
            "tool": "github_create_issue",
            "mcpResult": {"structuredContent": {"n": 1}},
        }


@for_each(
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
    assert details_of(result)["tool"] == "github_create_issue"


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
def test_a_connect_that_was_not_done_is_an_error_and_names_the_server_once(error: CallError) -> None:
    room = FakeRoom()
    room.refuse = error

    result = result_of(room, connect="fresh")
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
    assert asked(KnownRoom(), args={"tool": "clock_now"})[0].startswith(
        "Gateway params were nested inside `args`; pass them top-level"
    )


@pytest.mark.parametrize("args", [{"path": "/tmp"}, {"limit": 5}, '{"path": "/tmp"}'])
def test_arguments_without_a_tool_are_told_that_the_tool_is_missing(args: Any) -> None:
    assert "`tool` is missing" in asked(KnownRoom(), args=args)[0]


def test_a_tool_error_carries_the_expected_parameters() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="github_create_issue")
    room.calls[0].end({"content": [{"type": "text", "text": "title missing"}], "isError": True})
    (result,) = sink.results
    assert result["isError"] is True
    assert details_of(result)["error"] == "tool_error"
    text = result["content"][0]["text"]
    assert text.startswith("Error: title missing\n\nExpected parameters:\ntitle (string) *required*")


def test_a_person_reads_the_expected_parameters_without_the_mark_for_models() -> None:
    expected = "\n\nExpected parameters:\ntitle (string, required)"
    room = FakeRoom()
    sink, _ = begin(room, hints=FOR_PEOPLE, tool="github_create_issue")
    theirs = "the title\ntitle (string) *required*"  # what a server says stays as it is
    room.calls[0].end({"content": [{"type": "text", "text": theirs}], "isError": True})
    refused, _ = begin(room, hints=FOR_PEOPLE, tool="github_create_issue")
    room.calls[1].fail(RemoteError("Bad title", server="github", rpc_code=-32602))
    misread, _ = begin(room, hints=FOR_PEOPLE, tool="github_create_issue", title="x")
    for (result,), said in (
        (sink.results, f"Error: {theirs}{expected}"),
        (refused.results, f"Bad title{expected}"),
        (misread.results, expected),
    ):
        assert said in result["content"][0]["text"]


ENDS = [
    (RemoteError("Bad title", server="github", rpc_code=-32602), True),
    (RemoteError("Bad title", server="github", rpc_code=-32603), True),
    (BadArguments("The arguments cannot be written.", server="github"), True),
    (RemoteError("Method not found", server="github", rpc_code=-32601), False),
    (ServerLost("It exited.", server="github", reach=Reach.SENT), False),
    (CallTimeout("No answer in 60 s.", server="github", reach=Reach.SENT, timeout=60), False),
    (ServerDown('"github" is down.', server="github"), False),
    (CallError("It is disabled.", server="github"), False),
    (ProtocolFault("the answer is not a result object", server="github", reach=Reach.ANSWERED), False),
    (ToolChanged("It has changed.", server="github"), False),
    (Drained("It was drained.", server="github"), False),
    (InputRefused("It asked and was not answered.", server="github", reach=Reach.ANSWERED), False),
]


@for_each(("error", "may_be"), ENDS, ids=lambda each: type(each).__name__)
def test_expected_parameters_are_shown_only_where_the_arguments_can_be_at_fault(
    error: CallError, may_be: bool
) -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="github_create_issue")
    room.calls[0].fail(error)
    assert ("Expected parameters" in sink.results[0]["content"][0]["text"]) is may_be


@for_each(
    ("given", "named"),
    [
        ({"seach": "issue"}, 'Unknown parameter "seach"; did you mean "search"?'),
        ({"include_schemas": False, "search": "x"}, 'did you mean "includeSchemas"?'),
        ({"tool": "github_create_issue", "title": "x"}, "goes into `args`"),
        ({"tool": "github_create_issue", "title": "x"}, "Expected parameters:\ntitle (string) *required*"),
        ({"zzz": 1, "yyy": 2}, 'Unknown parameters "zzz", "yyy".'),
        ({"k" * 2_000_000: 1}, "Unknown parameter"),
        ({f"k{number}": 1 for number in range(999)}, "and 994 more"),
    ],
)
def test_a_parameter_that_the_tool_does_not_have_is_named_and_nothing_is_done(
    given: dict[str, Any], named: str
) -> None:
    room = FakeRoom()
    text, details = asked(room, **given)
    assert named in text
    assert (details["error"], len(text) < 1_500, room.calls) == ("invalid_args", True, [])


def test_an_unknown_parameter_that_says_nothing_does_not_matter() -> None:
    assert asked(KnownRoom(), search="pulls", why=None, note="") == asked(KnownRoom(), search="pulls")


def test_the_footer_of_a_page_names_the_option_that_its_reader_has() -> None:
    room = FakeRoom()
    ask_for = parse_request({"search": "", "server": "github", "limit": 1})
    assert CatalogueReader(room).answer(ask_for).text.endswith("offset: 1 for more")
    assert CatalogueReader(room, hints=FOR_PEOPLE).answer(ask_for).text.endswith("add --offset 1 for more")


def test_one_of_a_thing_is_said_in_the_singular() -> None:
    room = FakeRoom()
    room.config = msgspec.structs.replace(
        room.config, servers={"clock": room.config.servers["clock"]}, broken={}
    )
    room.learn("clock", NOW)
    assert asked(room)[0].splitlines()[0] == "MCP: 1/1 server, 1 tool"


def test_a_server_in_backoff_is_refused_as_unavailable() -> None:
    room = FakeRoom()
    room.refuse = Unavailable("clock", failed_ago=7, retry_in=23)
    text, details = asked(room, tool="clock_now")
    assert text.startswith('Server "clock" not available (failed 7 s ago)')
    step = 'Use mcp({ connect: "clock" }) when its cause is mended; `greenroom explain clock` says more.'
    assert text.endswith(f"Retry in 23 s. {step}"), "a start from the same cause would only fail again"
    assert (details["error"], details["failedAgo"], details["retryIn"]) == ("server_unavailable", 7, 23)
    result = anyio.run(ask, McpTool(room, hints=FOR_PEOPLE), {"tool": "clock_now"})
    assert result["content"][0]["text"].endswith(
        "Retry in 23 s.\nTo see why: `greenroom explain clock`. "
        "When that is mended, do not wait: `greenroom refresh clock`"
    )


@for_each("kind", [ServerDown, NeedsAuth, SessionNeeded, RoomClosed])
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
        details = details_of(sink.results[0])
        assert (details["error"], details["reach"]) == ("protocol_error", "answered")
        assert (details["server"], details["tool"]) == ("clock", "clock_now")


def test_t18_an_exact_name_beats_one_that_is_equal_but_for_a_hyphen() -> None:
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


# ---- what needs a task ---------------------------------------------------------------------------------------------


def test_connect_lists_what_it_found() -> None:
    room = FakeRoom()
    room.on_connect = lambda server: room.learn(server, {**NOW, "name": "hello"})
    text, details = asked(room, connect="fresh")
    assert room.connected == ["fresh"]
    assert text.startswith("fresh (1 tool")
    assert details["tools"] == ["fresh_hello"]


def test_an_unknown_name_connects_the_server_it_may_be_of() -> None:
    room = FakeRoom()
    room.on_connect = lambda server: room.learn(server, {**NOW, "name": "hello"})
    room.answer = {"content": [{"type": "text", "text": "fresh_hello ran"}]}
    text, details = asked(room, tool="fresh_hello")
    assert text == "fresh_hello ran"
    assert details["server"] == "fresh"


def test_t19_a_huge_text_is_cut_and_kept_in_a_private_file(tmp_path: Any) -> None:
    room = KnownRoom()
    full = "line of text\n" * 40_000
    room.answer = {
        "content": [{"type": "text", "text": full}, {"type": "image", "data": "x", "mimeType": "image/png"}]
    }

    result = result_of(room, spill=Spill(tmp_path / "out"), tool="clock_now")
    report = details_of(result)["outputGuard"]
    (kept,) = (tmp_path / "out").iterdir()
    assert report["truncated"] is True
    assert report["fullOutputPath"] == str(kept)
    assert kept.read_text() == full
    assert kept.stat().st_mode & 0o777 == 0o600
    assert str(kept) in result["content"][0]["text"]
    assert len(result["content"][0]["text"].encode()) <= 51_200
    assert result["content"][-1] == {"type": "image", "data": "x", "mimeType": "image/png"}


def test_a_spill_that_cannot_be_written_says_so(tmp_path: Any) -> None:
    room = KnownRoom()
    room.answer = {"content": [{"type": "text", "text": "x" * 100_000}]}
    (tmp_path / "out").write_text("a file where the directory should be")

    result = result_of(room, spill=Spill(tmp_path / "out"), tool="clock_now")
    assert "could not be saved" in result["content"][0]["text"]
    assert details_of(result)["outputGuard"]["writeError"]


@pytest.mark.parametrize("more", [1, 20_000])
def test_what_does_not_fit_the_details_is_kept_in_a_file(tmp_path: Any, more: int) -> None:
    room = KnownRoom()
    structured = {"x": "y" * (REST_LIMIT - len('{"structuredContent":{"x":""}}') + more)}
    room.answer = {"content": [{"type": "text", "text": "ok"}], "structuredContent": structured}

    rest = details_of(result_of(room, spill=Spill(tmp_path / "out"), tool="clock_now"))["mcpResult"]
    assert (rest["omitted"], rest["rawResultBytes"]) == (True, REST_LIMIT + more)
    (kept,) = (tmp_path / "out").iterdir()
    assert rest["savedTo"] == str(kept)
    assert kept.suffix == ".json"
    assert json.loads(kept.read_text()) == {"structuredContent": structured}


def test_what_is_neither_shown_nor_can_be_kept_says_so(tmp_path: Any) -> None:
    room = KnownRoom()
    room.answer = {"content": [], "_meta": {"x": "y" * REST_LIMIT}}
    (tmp_path / "out").write_text("a file where the directory should be")

    rest = details_of(result_of(room, spill=Spill(tmp_path / "out"), tool="clock_now"))["mcpResult"]
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
    assert run(backend, partial(turns_during, room, asked)) >= 30


def test_others_have_their_turn_while_thousands_of_tools_are_looked_through_for_the_first_status(
    tmp_path: Path, backend: str
) -> None:
    servers = {f"far{number}": {"command": "x"} for number in range(190)}
    config, now = {"mcpServers": servers}, time.time()
    keys, tools = (
        catalogue_keys(parse_config(config)),
        tuple({**NOW, "name": f"t{number}"} for number in range(20)),
    )
    entries = [ServerEntry(name, keys[name], tools=tools, fetched_at=now) for name in servers]
    CatalogueFile(tmp_path / "c.json").save(entries, now)

    async def body() -> int:
        async with Greenroom.open(config, bootstrap=False, cache_path=tmp_path / "c.json") as room:
            assert len(port_of(room).catalogue.index.tools()) == 190 * 20
            return await turns_of(port_of(room).catalogue.surveyed)

    assert run(backend, body) >= 10


async def turns_during(room: Any, asked: dict[str, Any]) -> int:
    """How often others have their turn while the `mcp` tool is asked this."""
    return await turns_of(partial(ask, McpTool(room), asked))


async def turns_of(work: Callable[[], Awaitable[object]]) -> int:
    """How often others have their turn while this is done."""
    turns = passed = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await anyio.lowlevel.checkpoint()
        turns = 0
        await work()
        passed = turns
        group.cancel_scope.cancel()
    return passed


def test_two_who_search_at_first_share_the_work(backend: str) -> None:
    room = FakeRoom()
    room.learn("clock", *({**NOW, "name": f"tool_{number}"} for number in range(1_000)))

    async def body() -> list[Any]:
        found: list[Any] = []

        async def look() -> None:
            result = await ask(McpTool(room), {"search": "tool"})
            found.append((room.index.ranking, details_of(result)["count"]))

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            group.start_soon(look)
        return found

    one, other = run(backend, body)
    assert one[0] is other[0]
    assert one[1] == other[1] == 1_000


def test_a_call_that_is_cancelled_while_its_name_is_looked_for_is_not_begun(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, begun, may_end = FakeRoom(), threading.Event(), threading.Event()
    room.learn("clock", *({**NOW, "name": f"tool_{number}"} for number in range(1_000)))
    prepare = Index.prepare

    def prepared(index: Index) -> None:
        begun.set()
        assert may_end.wait(PATIENCE), "the loop stood still"
        prepare(index)

    monkeypatch.setattr(Index, "prepare", prepared)

    async def body() -> None:
        async with anyio.create_task_group() as group:
            job = Job(Sink(), group.start_soon, b"1")
            McpTool(room).begin({"tool": "clock-tool_7", "args": {}}, job)
            while not begun.is_set():
                await anyio.sleep(0.001)
            job.cancel()
            may_end.set()

    run(backend, body)
    assert room.calls == []


def test_describe_shows_annotations_and_what_it_returns() -> None:
    room = KnownRoom()
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
    assert asked(KnownRoom(), server="nope")[0].endswith("Configured: github, clock, fresh, off, bad.")


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
    room = KnownRoom(output_max_bytes=AROUND + 20)
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


@for_each(
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

    def status(server: str | None = None) -> list[ServerStatus]:
        assert server is None
        return [
            ServerStatus(name, scope=scope, tool_count=count)
            for name, found in rows.items()
            for scope, count in found
        ]

    room.status = status
    for _ in range(2):
        found = {row.server: row.tool_count for row in CatalogueReader(room).rows()}
        assert found == {"github": 1, "clock": 3, "bad": None}
        rows["github"].reverse()


def test_the_longest_prefix_says_whose_a_tool_would_be() -> None:
    room = FakeRoom()
    names = ("off_a", "off-a-more")  # "_" comes after "-"
    others = {name: msgspec.structs.replace(room.config.servers["off"], name=name) for name in names}
    room.config = msgspec.structs.replace(room.config, servers={**room.config.servers, **others})
    room.reindex()
    _, details = asked(room, describe="off_a_more_x")
    assert (details["error"], details["server"]) == ("server_disabled", "off-a-more")


def test_a_tool_of_another_server_than_the_one_named_is_not_called() -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="github_create_issue", server="off", args={"title": "x"})
    assert room.calls == []
    assert sink.results[0]["isError"]


def test_t36_others_have_their_turn_whatever_is_asked_of_thousands_of_servers(backend: str) -> None:
    """By a model, and by a command that looks at all rows."""
    servers = {f"far{number}": {"command": "x"} for number in range(3_000)}
    all_rows = {"status": {}, "refreshed": {"names": list(servers), "since": 0.0}}

    async def body() -> dict[str, int]:
        async with Greenroom.open({"mcpServers": servers}, bootstrap=False) as room:
            turns = {
                str(asked): await turns_during(port_of(room), asked)
                for asked in ({}, {"search": "issue"}, {"describe": "nobodys_tool"}, {"offset": 2_900})
            }
            for what, asked in all_rows.items():
                turns[what] = await turns_of(partial(commands(room, "9.9")[what], asked))
            return turns

    turns = run(backend, body)
    assert {asked: count for asked, count in turns.items() if count < 10} == {}


# ---- what is asked ---------------------------------------------------------------------------------------------------


@for_each(
    ("arguments", "fields"),
    [
        ({}, {"mode": Mode.STATUS, "limit": 500}),
        ({"args": {}}, {"mode": Mode.STATUS, "limit": 500}),
        ({"args": ""}, {"mode": Mode.STATUS, "limit": 500}),
        ({"limit": 0}, {"mode": Mode.STATUS, "limit": 1}),
        ({"limit": -3, "offset": -1}, {"mode": Mode.STATUS, "limit": 1}),
        ({"limit": 501, "offset": 7.0}, {"mode": Mode.STATUS, "limit": 500, "offset": 7}),
        ({"limit": 499.9}, {"mode": Mode.STATUS, "limit": 499}),
        ({"search": "a"}, {"mode": Mode.SEARCH, "subject": "a", "limit": 12}),
        ({"search": ""}, {"mode": Mode.SEARCH, "limit": 12}),
        ({"search": "a", "limit": 100}, {"mode": Mode.SEARCH, "subject": "a", "limit": 100}),
        ({"search": "a", "limit": 101}, {"mode": Mode.SEARCH, "subject": "a", "limit": 100}),
        (
            {"search": "a", "regex": True, "includeSchemas": False, "server": "s"},
            {
                "mode": Mode.SEARCH,
                "subject": "a",
                "limit": 12,
                "regex": True,
                "include_schemas": False,
                "server": "s",
            },
        ),
        ({"search": "a", "regex": None, "server": ""}, {"mode": Mode.SEARCH, "subject": "a", "limit": 12}),
        ({"server": "s"}, {"mode": Mode.LIST, "subject": "s", "server": "s"}),
        ({"output": "o", "offset": 9}, {"mode": Mode.OUTPUT, "subject": "o", "offset": 9}),
        ({"tool": "t", "server": "s"}, {"mode": Mode.CALL, "subject": "t", "server": "s"}),
        ({"tool": "t", "limit": "x", "regex": 7}, {"mode": Mode.CALL, "subject": "t"}),
        ({"tool": "t", "args": {"a": 1}}, {"mode": Mode.CALL, "subject": "t", "args": {"a": 1}}),
        ({"tool": "t", "args": ""}, {"mode": Mode.CALL, "subject": "t"}),
    ],
    ids=repr,
)
def test_what_a_request_asks_for(arguments: Any, fields: dict[str, Any]) -> None:
    usual: dict[str, Any] = {
        "subject": "", "server": None, "args": None, "regex": False,
        "include_schemas": None, "limit": 500, "offset": 0, "near": (), "background": False,
    }  # fmt: skip
    assert msgspec.structs.asdict(parse_request(arguments)) == {**usual, **fields}


def test_of_several_wishes_the_weightiest_counts() -> None:
    order = ["tool", "connect", "describe", "promote", "instructions", "search", "output", "task", "server"]
    for number, name in enumerate(order):
        asked_for = {each: each for each in reversed(order[number:])}
        assert parse_request(asked_for).subject == name
        assert parse_request({**asked_for, **dict.fromkeys(order[:number], None)}).subject == name


@for_each(
    ("value", "kind"), [([], "array"), ({}, "object"), (True, "boolean"), (1.5, "number"), ("x", "string")]
)
def test_a_parameter_of_another_kind_is_named(value: Any, kind: str) -> None:
    texts = ("tool", "connect", "describe", "promote", "instructions", "search", "output", "server")
    for name, wanted, taken in (
        *((name, "a string", str) for name in texts),
        *((name, "true or false", bool) for name in ("regex", "includeSchemas")),
        *((name, "a whole number", float) for name in ("limit", "offset")),
    ):
        if isinstance(value, taken):
            parse_request({"search": "x", name: value})
            continue
        given = {name: value} if wanted == "a string" and name != "server" else {"search": "x", name: value}
        with pytest.raises(UsageError) as refused:
            parse_request(given)
        assert refused.value.code == "invalid_args"
        assert refused.value.message == f"Invalid {name}: expected {wanted}, got {kind}."
    for number in (1e15, -1e15, float("inf")):
        with pytest.raises(UsageError, match="got number"):
            parse_request({"limit": number})


# ---- credentials -----------------------------------------------------------------------------------------------------


class Secretive(FakeRoom):
    """Of what `clock` and `fresh` say, the word `secret` is hidden beside the `mcp` tool."""

    def scrubber(self, server: str, door: Scrub, /) -> Any:
        return Hiding() if server in ("clock", "fresh") and door is Scrub.MCP else None

    async def find(self, tool: str, server: str | None = None) -> Any:
        self.learn("fresh", {**NOW, "name": "hello"})
        return await super().find(tool, server)


@pytest.mark.parametrize("size", [0, (1 << 18) - 200, 1 << 18])
@in_real_time
async def test_of_a_result_of_any_size_credentials_are_hidden(
    size: int,
) -> None:
    room = Secretive(output_max_bytes=0)
    room.answer = {
        "content": [{"type": "text", "text": "a secret"}, {"type": "text", "text": "x" * size}],
        "_meta": {"own": "secret"},
    }
    for tool, is_hidden in (("clock_now", True), ("github_list_issues", False)):
        result = await ask(McpTool(room), {"tool": tool})
        said = json.dumps(result)
        assert ("secret" in said, "***" in said) == (not is_hidden, is_hidden)
        assert result["content"][0]["text"] == ("a ***" if is_hidden else "a secret")


@in_real_time
async def test_a_tool_that_had_to_be_looked_for_tells_no_credential_either() -> None:
    room = Secretive()
    for server in (None, "fresh"):
        room.entries["fresh"] = None
        room.reindex()
        sink = Sink()
        async with anyio.create_task_group() as group:
            job = Job(sink, group.start_soon, b"1")
            job.token = "t"
            more = {"server": server} if server else {}
            McpTool(room).begin({"tool": "fresh_hello", "args": {"a": 1}, **more}, job)
        call = room.calls[-1]
        call.on_progress({"progress": 1, "message": "a secret"})
        said = f"secret {server} {call.arguments}"
        call.end({"content": [{"type": "text", "text": said}], "structuredContent": {"x": "secret"}})
        (result,) = sink.results
        assert result["content"][0]["text"] == f"*** {server} {{'a': 1}}"
        details = details_of(result)
        assert (details["server"], details["tool"]) == ("fresh", "fresh_hello")
        assert details["mcpResult"] == {"structuredContent": {"x": "***"}}
        assert sink.progress == [{"progress": 1, "message": "a ***"}]


@pytest.mark.parametrize("modern", [False, True])
def test_progress_of_a_known_tool_tells_no_credential(modern: bool) -> None:
    room = Secretive()
    for tool, message in (("clock_now", "a ***"), ("github_list_issues", "a secret")):
        sink, job = Sink(), Job(Sink(), refuse_tasks, b"1")
        job._sink, job.token, job.modern = sink, 0, modern
        McpTool(room).begin({"tool": tool}, job)
        room.calls[-1].on_progress({"progress": 1, "message": "a secret"})
        assert sink.progress == [{"progress": 1, "message": message}]


# ---- how a call begins and ends --------------------------------------------------------------------------------------


@for_each("modern", [False, True])
@for_each(
    ("error", "code", "text"),
    [
        (UnknownServer("clock"), "server_not_found", 'Server "clock" not found.'),
        (Unavailable("clock", failed_ago=7, retry_in=23.46), "server_unavailable", "failed 7 s ago"),
        (ApprovalDenied("no", server="clock"), "approval_denied", "no"),
    ],
)
def test_what_is_refused_at_once_is_told_and_nothing_waits_for_it(
    error: CallError, code: str, text: str, modern: bool
) -> None:
    room, sink = FakeRoom(), Sink()
    if isinstance(error, UnknownServer):  # a reload has removed it, and the index follows later
        servers = {name: each for name, each in room.config.servers.items() if name != "clock"}
        room.config = msgspec.structs.replace(room.config, servers=servers)
    room.refuse = error
    suspended = SuspendedCalls(30.0)
    job = Job(sink, refuse_tasks, b"1")
    job.modern = modern
    McpTool(room, suspended=suspended).begin({"tool": "clock_now"}, job)
    (result,) = sink.results
    details = details_of(result)
    assert (result["isError"], details["error"]) == (True, code)
    said = result["content"][0]["text"]
    assert said.startswith(text) if code == "server_not_found" else text in said
    assert suspended._running == {}
    if isinstance(error, Unavailable):
        assert (details["failedAgo"], details["retryIn"]) == (7, 23.5)


@pytest.mark.parametrize("modern", [False, True])
def test_a_cancelled_request_cancels_its_call_in_both_eras(modern: bool) -> None:
    room, sink = FakeRoom(), Sink()
    job = Job(sink, refuse_tasks, b"1")
    job.modern = modern
    suspended = SuspendedCalls(30.0)
    McpTool(room, suspended=suspended).begin({"tool": "clock_now"}, job)
    job.cancel()
    assert room.calls[0].cancelled
    room.calls[0].end({"content": []})
    assert (sink.results, suspended._running) == ([], {})


@pytest.mark.parametrize("reach", list(Reach))
def test_only_a_call_that_was_not_lost_asks_again_whether_there_is_such_a_tool(reach: Reach) -> None:
    room = FakeRoom()
    sink, _ = begin(room, tool="clock_now")
    room.learn("clock", {**NOW, "name": "today"})
    room.calls[0].met_a_start = True
    room.calls[0].fail(CallError("gone", server="clock", reach=reach))
    error = details_of(sink.results[0])["error"]
    assert error == ("call_failed" if reach is Reach.SENT else "tool_not_found_after_reconnect")


def test_a_request_that_cannot_be_read_says_what_it_was_for() -> None:
    for arguments, mode, tool in (
        ({"tool": "clock_now", "server": "clock", "args": 7}, "call", "clock_now"),
        ({"tool": "clock_now", "server": 7}, "call", None),
        ({"tool": 7}, "call", None),
        ({"tool": "nobody", "args": 7}, "call", None),
        ({"tool": "", "limit": "x"}, "request", None),
        ({"limit": "x"}, "request", None),
    ):
        (result,) = begin(FakeRoom(), hints=FOR_MODELS, **arguments)[0].results
        details = details_of(result)
        assert (details["mode"], details.get("tool"), details["error"]) == (mode, tool, "invalid_args")
        assert result["isError"]


def test_a_connect_that_cannot_be_is_refused_as_what_it_is() -> None:
    lost = 'Failed to connect to "fresh": It was lost.'
    busy = Busy("fresh", in_flight=1, queued=2, oldest_age=1.0, retry_in=1.0)
    for error, code, text in (
        (UnknownServer("fresh"), "server_not_found", 'Server "fresh" not found.'),
        (CallError("It was lost.", server="fresh"), "connect_failed", lost),
        (ServerDown("It was stopped.", server="fresh"), "server_not_connected", "It was stopped."),
        (busy, "server_busy", 'Server "fresh" is busy'),
        (NeedsAuth("It needs a login.", server="fresh"), "auth_required", "It needs a login."),
        (ConnectFailed("It ended.", server="fresh"), "connect_failed", None),
    ):
        room = FakeRoom()
        room.refuse = error
        said, details = asked(room, connect="fresh")
        assert (details["mode"], details["error"]) == ("connect", code)
        assert said.startswith(text) if text else said == error.message
    for server, code in (("off", "server_disabled"), ("bad", "config_error"), ("nope", "server_not_found")):
        room = FakeRoom()
        assert asked(room, connect=server)[1]["error"] == code
        assert room.connected == []


@for_each("takes", [False, True])
def test_a_tool_is_promoted_where_its_client_can_be_shown_it(takes: bool) -> None:
    def promote(name: str, **more: Any) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        listed, sink = ["old"], Sink()

        def list_it(target: Any) -> tuple[str, ...] | None:
            if not takes:
                return None
            listed.append(target.name)
            return tuple(listed)

        McpTool(FakeRoom(), promote=list_it).begin({"promote": name, **more}, Job(sink, refuse_tasks, b"1"))
        (result,) = sink.results
        return result["content"][0]["text"], details_of(result), tuple(listed)

    text, details, names = promote("clock_now")
    assert names == (("old", "clock_now") if takes else ("old",))
    if takes:
        assert (details["tool"], details["promoted"]) == ("clock_now", ["old", "clock_now"])
        assert text.endswith('mcp({ tool: "clock_now" }).')
    else:
        assert (details["tool"], details["error"]) == ("clock_now", "not_promoted")
    for name, more, code in (
        ("nobody", {}, "tool_not_found"),
        ("off_x", {}, "server_disabled"),
        ("x", {"server": "off"}, "server_disabled"),
        ("x", {"server": "nope"}, "server_not_found"),
    ):
        assert promote(name, **more)[1:] == ({**promote(name, **more)[1], "error": code}, ("old",))
    (result,) = begin(FakeRoom(), promote="clock_now")[0].results
    assert details_of(result)["error"] == "not_promoted", "nothing is beside it"


def test_a_text_may_follow_what_was_looked_up() -> None:
    sink = Sink()
    tool = McpTool(FakeRoom())
    tool.look(parse_request({"describe": "nobody"}), Job(sink, refuse_tasks, b"1"), "One more \u200bthing.")
    (result,) = sink.results
    assert result["content"][1] == {"type": "text", "text": "One more thing."}
    assert details_of(result)["error"] == "tool_not_found"
    assert result["isError"]


def test_a_name_of_megabytes_is_not_said_again() -> None:
    for length, shown in ((256, "x" * 256), (257, "x" * 256 + "…")):
        text, details = asked(FakeRoom(), tool="x" * length)
        assert f'Tool "{shown}" not found.' in text
        assert details["requestedTool"] == shown
        sink = Sink()
        McpTool(FakeRoom()).refuse("x" * length, Job(sink, refuse_tasks, b"1"))
        (result,) = sink.results
        assert result["content"][0]["text"].startswith(f"Unknown tool: {shown}. Use mcp(")
        assert details_of(result)["requestedTool"] == shown


# ---- what is looked up -----------------------------------------------------------------------------------------------


def test_a_row_of_one_server_is_that_row_alone_and_a_broken_one_says_whether_it_is_trusted() -> None:
    room = FakeRoom()
    problem = Problem("here/.mcp.json", "not trusted", code="config_untrusted")
    for code, is_untrusted in (("project_untrusted", None), ("config_error", False)):
        why = msgspec.structs.replace(problem, code=code)
        room.config = msgspec.structs.replace(room.config, broken={**room.config.broken, "mine": why})
        (row,) = CatalogueReader(room).rows("mine")
        assert row.server == "mine"
        assert is_untrusted is None or row.untrusted is is_untrusted
    room.config = msgspec.structs.replace(
        room.config, broken={"mine": msgspec.structs.replace(problem, code=UNTRUSTED)}
    )
    assert [row.untrusted for row in CatalogueReader(room).rows("mine")] == [True]
    for name in room.config.servers:
        assert [row.server for row in CatalogueReader(room).rows(name)] == [name]
    assert CatalogueReader(room).rows("nobody") == []


def test_a_search_of_one_server_names_no_other_and_begins_where_it_is_told() -> None:
    room = FakeRoom()
    room.learn("clock", *({**NOW, "name": f"at_{hour}"} for hour in range(5)))
    for pattern in (False, True):
        text, details = asked(room, search="time", server="clock", offset=3, regex=pattern)
        assert len(details["matches"]) == 2, "the last two of five"
        assert (details["count"], details["hasMore"], "unknownServers" in details) == (5, False, False)
        assert text.endswith("2 of 5")
    assert "unknownServers" in asked(room, search="time")[1]
    room.learn("clock", *({"name": f"at_{hour}", "inputSchema": {}} for hour in range(5)))
    assert asked(room, search=" ", regex=True, server="clock")[1]["count"] == 5, "no pattern, so everything"
    room.rows["fresh"] = {"state": State.CONNECTING, "waiting_for": "slot"}
    details = asked(room, search="zebra")[1]
    assert [each["name"] for each in details.get("unknownServers", [])] == ["fresh"]


def test_a_long_answer_keeps_to_the_bounds_whatever_was_asked() -> None:
    room = FakeRoom(output_max_bytes=AROUND + 200)
    tools = [{**NOW, "name": f"tool_{number:03}", "description": "word " * 9} for number in range(60)]
    room.learn("clock", *tools)
    for arguments, key in (
        ({"server": "clock"}, "tools"),
        ({"search": "word"}, "matches"),
        ({"search": "word", "includeSchemas": False}, "matches"),
        ({"search": "^tool|clock", "regex": True}, "matches"),
    ):
        text, details = asked(room, **arguments)
        assert len(text.encode()) <= AROUND + 200
        assert 1 <= len(details[key]) < 12
        assert details["nextOffset"] == len(details[key])
        assert "outputGuard" not in details, "it is a page, and nothing of it was cut"
    more = {f"far{n}": msgspec.structs.replace(room.config.servers["off"], name=f"far{n}") for n in range(60)}
    room.config = msgspec.structs.replace(room.config, servers={**room.config.servers, **more})
    text, details = asked(room)
    assert len(text.encode()) <= AROUND + 200
    assert len(details["servers"]) < 30


def test_a_tool_that_is_missing_is_looked_for_only_where_it_may_be() -> None:
    room = FakeRoom()
    for name, server, error, of in (
        ("x", "fresh", "not_known_yet", "fresh"),
        ("fresh_x", None, "not_known_yet", "fresh"),
        ("off_x", None, "server_disabled", "off"),
        ("off_x", "clock", "tool_not_found", "clock"),
        ("bad_x", "github", "tool_not_found", "github"),
        ("x", "off", "server_disabled", "off"),
        ("x", "nope", "server_not_found", "nope"),
        ("zebra", None, "tool_not_found", None),
    ):
        given = {"describe": name} if server is None else {"describe": name, "server": server}
        _, details = asked(room, **given)
        assert (details["error"], details.get("server")) == (error, of), given
    room.on_connect = lambda server: room.learn(server, {**NOW, "name": "hello"})
    far = msgspec.structs.replace(room.config.servers["fresh"], name="far")
    room.config = msgspec.structs.replace(room.config, servers={**room.config.servers, "far": far})
    room.reindex()
    _, details = asked(room, tool="fresh_bye", server="fresh")
    assert details["error"] == "tool_not_found_after_reconnect"
    assert "unknownServers" not in details, "it was just asked, and the others are not meant"


# ---- pages of a kept text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_bytes", "max_lines", "size", "lines"),
    [
        (0, 0, 50_900, None),
        (1_000, 0, 700, None),
        (100, 0, 300, None),  # a page has some text, whatever the bound
        (0, 10, None, 8),
        (0, 1, None, 2),
        (20_000, 5, None, 3),
    ],
)
def test_a_page_of_a_kept_text_is_as_long_as_an_answer_may_be(
    max_bytes: int, max_lines: int, size: int | None, lines: int | None, tmp_path: Any
) -> None:
    room = KnownRoom(output_max_bytes=max_bytes, output_max_lines=max_lines)
    spill = Spill(tmp_path / "out")
    flat = spill.write("x" * 100_000).stem.removeprefix("output-")
    tall = spill.write("ab\n" * 1_000).stem.removeprefix("output-")
    for output, most in ((flat, size), (tall, None if lines is None else 3 * lines)):
        if most is None:
            continue
        result = room.result_of({"output": output}, spill=spill, hints=FOR_META)
        details = details_of(result)
        assert (details["start"], details["end"]) == (0, most)
        where = f'mcp_discover({{ output: "{output}", offset: {most} }})'
        assert where in result["content"][0]["text"]


def test_a_kept_text_that_cannot_be_read_says_why(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Spill, "page", refuse)
    output = "0123456789abcdef"
    result = KnownRoom().result_of({"output": output}, spill=Spill(tmp_path))
    assert result["content"][0]["text"] == (
        f'The output "{output}" cannot be read (Permission denied). Call the tool again.'
    )
    assert details_of(result)["error"] == "output_unreadable"


def test_the_rest_of_a_long_answer_is_told_to_its_reader(tmp_path: Any) -> None:
    room = KnownRoom(output_max_bytes=2_000)
    room.answer = {"content": [{"type": "text", "text": "x" * 5_000}, {"type": "image", "data": "x"}]}
    result = room.result_of({"tool": "clock_now"}, spill=Spill(tmp_path / "out"), hints=FOR_META)
    report = details_of(result)["outputGuard"]
    (kept,) = (tmp_path / "out").iterdir()
    assert report["output"] == kept.stem.removeprefix("output-")
    assert f'mcp_discover({{ output: "{report["output"]}"' in result["content"][0]["text"]
    assert (report["originalBytes"], report["originalLines"], report["imageBlocksPassedThrough"]) == (
        5_000, 1, 1,
    )  # fmt: skip
    assert report["returnedBytes"] <= 2_000
    room.answer = {"content": [{"type": "text", "text": "x\n" * 5_000}]}
    result = room.result_of({"tool": "clock_now"}, spill=Spill(tmp_path / "out"), hints=FOR_META)
    report = details_of(result)["outputGuard"]
    assert report["originalLines"] > report["returnedLines"] > 1
    assert "imageBlocksPassedThrough" not in report


@pytest.mark.parametrize("size", [0, 1 << 18])
def test_an_image_over_the_bound_of_the_room_goes_to_a_file(size: int, tmp_path: Any) -> None:
    room = KnownRoom(output_max_image=8, output_max_bytes=0)
    text = {"type": "text", "text": "y" * size}
    for length, is_kept in ((8, False), (12, True)):
        image = {"type": "image", "data": "A" * length, "mimeType": "image/png"}
        room.answer = {"content": [image, text]}
        spill = Spill(tmp_path / f"out{length}")
        result = room.result_of({"tool": "clock_now"}, spill=spill)
        assert (result["content"][0] == image) is not is_kept
        assert spill.directory.exists() is is_kept


def test_details_that_are_too_many_are_left_out_of_every_answer() -> None:
    room = KnownRoom(output_max_bytes=0)
    for size, is_left_out in ((40_000, False), (60_000, True)):
        schema = {"type": "object", "properties": {"a": {"description": "x" * size}}}
        room.learn("clock", {**NOW, "inputSchema": schema})
        text, details = asked(room, describe="clock_now")
        assert ("tool" in details, "omittedBytes" in details) == (not is_left_out, is_left_out)
        assert details["mode"] == "describe"
        assert "x" * 100 in text


def test_a_bound_of_lines_holds_for_results_and_for_words_of_ours(tmp_path: Any) -> None:
    room = KnownRoom(output_max_lines=LINES_AROUND + 4)
    room.learn("clock", *({**NOW, "name": f"at_{hour:02}"} for hour in range(30)))
    room.answer = {"content": [{"type": "text", "text": "x\n" * 100}]}
    for arguments in ({"tool": "clock_at_00"}, {"describe": "clock_at_00"}, {"server": "clock"}):
        result = room.result_of(arguments, spill=Spill(tmp_path / "out"))
        assert result["content"][0]["text"].count("\n") < LINES_AROUND + 4, arguments
    (kept,) = (tmp_path / "out").iterdir()
    assert kept.read_text() == "x\n" * 100


@in_real_time
async def test_a_result_that_is_none_of_a_server_has_the_details_it_is_given() -> None:
    sink = Sink()
    async with anyio.create_task_group() as group:
        job = Job(sink, group.start_soon, b"1")
        result = {"content": [{"type": "text", "text": "made"}], "isError": True}
        McpTool(FakeRoom()).tell(result, job, mode="run", runs=2)
    (told,) = sink.results
    assert told["_meta"] == {"greenroom/details": {"mode": "run", "runs": 2}}
    assert told["content"][0]["text"].endswith("made")
