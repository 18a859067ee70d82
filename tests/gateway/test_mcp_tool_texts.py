"""The parts of the `mcp` tool by themselves: its words, its bounds, its files, its patterns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace
from tests.support import run
from tests.support.door_rooms import CREATE_ISSUE, NOW, FakeRoom, KnownRoom
from tests.support.rows import for_each

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.namespace import Target
from greenroom.catalogue.overrides import ToolOverride
from greenroom.config.model import PrefixMode
from greenroom.gateway.exposures import tool_texts as texts
from greenroom.gateway.exposures.large_call import read_large_call
from greenroom.gateway.exposures.mcp_tool import McpTool, ask
from greenroom.gateway.exposures.output_files import Spill
from greenroom.gateway.exposures.query_modes import CatalogueReader, matcher
from greenroom.gateway.exposures.result_texts import outcome_of
from greenroom.gateway.exposures.tool_definition import (
    DETAILS_LIMIT,
    FOR_MODELS,
    FOR_PEOPLE,
    NAME,
    McpToolAnswer,
    parse_request,
    size_of,
)
from greenroom.gateway.exposures.tool_texts import unknown_details, waits
from greenroom.gateway.exposures.tool_texts import unknown_sentence as sentence
from greenroom.gateway.jobs import Job
from greenroom.protocol.bounds import MESSAGE_VALUES
from greenroom.protocol.errors import (
    AmbiguousTool,
    ApprovalDenied,
    ApprovalNeeded,
    Bug,
    Busy,
    CallError,
    Reach,
    RemoteError,
    Unavailable,
    UnknownServer,
    UsageError,
)
from greenroom.protocol.jsonrpc.terms import RpcFault
from greenroom.protocol.lifecycle import State
from greenroom.protocol.near_names import nearest
from greenroom.protocol.status import ServerStatus


def _row(**facts: Any) -> ServerStatus:
    return ServerStatus("s", **facts)


# ---- one server in the overview ------------------------------------------------------------------------------------

ON, OFF = State.CONNECTED, State.IDLE


@for_each(
    ("facts", "word", "note"),
    [
        ({"broken": "why", "disabled": True, "state": ON}, "broken", "broken: why"),
        ({"disabled": True, "state": ON, "needs_auth": True}, "disabled", "disabled"),
        ({"state": ON, "needs_auth": True, "tool_count": 2}, "connected", "2 tools"),
        ({"state": ON, "failed_ago": 1.0, "tool_count": None}, "connected", "0 tools"),
        ({"needs_auth": True, "failed_ago": 1.0, "tool_count": 1}, "needs-auth", "needs auth"),
        ({"waiting_for": "slot", "waiting": 2.4}, "not-connected", "not known yet, waiting 2 s for a slot"),
        (
            {"waiting_for": "install", "waiting": 2.0, "last_line": "npm"},
            "not-connected",
            "not known yet, installing for 2 s: npm",
        ),
        ({"waiting_for": "breaker", "waiting": 2.0, "failed_ago": 7.6}, "failed", "failed 8 s ago"),
        ({"waiting_for": "breaker", "waiting": 2.0}, "not-connected", "not connected"),
        ({"waiting_for": "slot", "waiting": None}, "not-connected", "not connected"),
        ({"waiting_for": "slot", "waiting": 2.0, "tool_count": 1}, "cached", "1 tool, cached"),
        ({"failed_ago": 0.0, "tool_count": 1}, "failed", "failed 0 s ago"),
        ({"tool_count": 0}, "cached", "0 tools, cached"),
        ({"tool_count": 3, "down": "drained"}, "down", "down: drained"),
        ({"state": ON, "tool_count": 3, "down": "drained"}, "connected", "3 tools"),
        ({"tool_count": 2, "problems": ("a\n  b", "c")}, "cached", "2 tools; a b; c, cached"),
        ({"tool_count": 2, "problems": tuple("abcdef")}, "cached", "2 tools; a; b; c; d; e, cached"),
        ({}, "not-connected", "not connected"),
    ],
)
def test_of_several_facts_about_a_server_the_weightiest_shows(
    facts: dict[str, Any], word: str, note: str
) -> None:
    line = texts.line_of(_row(**facts))
    marks = {"broken": "✗", "disabled": "⊘", "connected": "✓", "needs-auth": "⚠", "failed": "✗"}
    assert line == texts.ServerLine(word, marks.get(word, "○"), note)


@for_each(
    ("facts", "text"),
    [
        ({"waiting_for": "install"}, "installing"),
        ({"waiting_for": "install", "waiting": 0.6, "state": State.CONNECTING}, "installing for 1 s"),
        ({"state": State.CONNECTING, "waiting": 3.0, "needs_auth": True}, "connecting for 3 s"),
        ({"needs_auth": True, "failed_ago": 2.0}, "needs a login"),
        ({"failed_ago": 2.0, "waiting_for": "breaker", "retry_in": 5.2}, "failed 2 s ago, next try in 5 s"),
        ({"failed_ago": 2.0, "retry_in": 5.0}, "failed 2 s ago"),
        ({"failed_ago": 0.0, "waiting_for": "breaker"}, "failed 0 s ago"),
        ({"waiting_for": "slot", "waiting": 0.0, "down": "x"}, "waiting 0 s for a slot"),
        ({"down": "stopped"}, "down"),
        ({}, "not asked yet"),
    ],
)
def test_what_a_server_that_is_not_known_waits_for(facts: dict[str, Any], text: str) -> None:
    assert waits(_row(**facts)) == text


def test_servers_that_are_not_known_are_named_up_to_a_number() -> None:
    rows = [ServerStatus(f"s{number}") for number in range(502)]
    hints = replace(FOR_MODELS, learn="Ask.", mend="Mend {server}.", log_in="Log in at {server}.")
    assert sentence([], hints) == ""
    assert sentence(rows[:2], hints) == "Not known yet: s0 (not asked yet), s1 (not asked yet). Ask."
    assert sentence(rows[:20], hints).endswith("s19 (not asked yet). Ask.")
    assert sentence(rows[:21], hints).endswith("s19 (not asked yet), and 1 more. Ask.")
    failed = [
        _row(failed_ago=2.0, failure="no\ntoken."),
        _row(needs_auth=True),
        _row(failed_ago=3.0, failure="x" * 500),
    ]
    said = sentence(failed, hints)
    assert said.startswith(
        "Not known yet: s (failed 2 s ago: no token), s (needs a login), s (failed 3 s ago: xxx"
    )
    assert said.endswith("xxx…). Log in at s. Mend s."), "nobody is told to ask those that were asked"
    assert len(said) < 400
    assert sentence([*failed, rows[0]], hints).endswith("Log in at s. Mend s. Ask.")
    assert len(unknown_details(rows)) == 500
    assert unknown_details([_row(last_line="x"), _row()]) == [
        {"server": "s", "name": "s", "waitsFor": "not asked yet", "lastLine": "x"},
        {"server": "s", "name": "s", "waitsFor": "not asked yet"},
    ]


def test_of_one_that_was_lost_the_overview_says_that_a_call_starts_it() -> None:
    lost = ServerStatus("a", failed_ago=3.2, failure="no", tool_count=1)
    assert "lost 3 s ago; a call starts it again" in texts.status([lost], FOR_MODELS).text
    refused = (msgspec.structs.replace(lost, **more) for more in ({"retry_in": 2.0}, {"failed_starts": 1}))
    assert all("failed 3 s ago" in texts.status([row], FOR_MODELS).text for row in refused)


# ---- the overview, a list, a description -----------------------------------------------------------------------------


def _details(answer: McpToolAnswer, *without: str) -> dict[str, Any]:
    return {key: value for key, value in answer.details.items() if key not in without}


def test_the_overview_counts_all_and_shows_its_page() -> None:
    rows = [
        ServerStatus("a", state=ON, tool_count=2),
        ServerStatus("b", state=ON, broken="why", tool_count=None),
        ServerStatus("c", disabled=True, tool_count=7),
        ServerStatus("d", failed_ago=3.2, failure="no", problems=("cut",)),
        ServerStatus("e", state=ON, failed_ago=3.2, failure="old", tool_count=1),
    ]
    whole = texts.status(rows, FOR_MODELS)
    assert whole.text.splitlines()[0] == "MCP: 2/4 servers, 3 tools (1 disabled)"
    assert whole.text.splitlines()[-2:] == ["", FOR_MODELS.overview]
    assert _details(whole) == {
        "mode": "status",
        "servers": [
            {"name": "a", "status": "connected", "toolCount": 2},
            {"name": "b", "status": "broken", "toolCount": 0, "failure": "why"},
            {"name": "c", "status": "disabled", "toolCount": 7},
            {
                "name": "d", "status": "failed", "toolCount": 0,
                "failedAgo": 3, "failure": "no", "problems": ["cut"],
            },
            {"name": "e", "status": "connected", "toolCount": 1},
        ],
        "totalTools": 3, "connectedCount": 2, "disabledCount": 1,
    }  # fmt: skip
    for limit, offset, names, footer, details in (
        (2, 1, "bc", "2 of 5 — offset: 3 for more", {"hasMore": True, "nextOffset": 3}),
        (2, 3, "de", "2 of 5", {"hasMore": False, "nextOffset": None}),
        (None, 4, "e", "1 of 5", {"hasMore": False, "nextOffset": None}),
        (9, 0, "abcde", None, {}),
    ):
        page = texts.status(rows, FOR_MODELS, limit=limit, offset=offset)
        assert [each["name"] for each in page.details["servers"]] == list(names)
        assert _details(page, "servers", "mode", "totalTools", "connectedCount", "disabledCount") == details
        assert (footer in page.text.splitlines()) if footer else " of 5" not in page.text
    assert texts.status([], FOR_MODELS).text == "MCP: 0/0 servers, 0 tools\n\nNo servers are configured."
    assert "disabled)" not in texts.status(rows[:1], FOR_MODELS).text


def test_a_list_says_what_it_is_of_and_why_it_is_empty() -> None:
    room = FakeRoom()
    tools, entry = room.index.tools("github"), room.entry("github")

    def listed(
        found: Any = (), entry: Any = None, limit: int = 9, offset: int = 0, **facts: Any
    ) -> McpToolAnswer:
        return texts.server_list(_row(**facts), found, entry, FOR_MODELS, limit=limit, offset=offset)

    shown = listed(tools, entry, state=ON, problems=("cut\nshort", *"bcdef"))
    assert shown.text.startswith(
        "s (3 tools):\n\n- github_create_issue - Create a new issue in a repository\n"
    )
    incomplete = "\n".join(f"Incomplete: {each}" for each in ("cut short", *"bcde"))
    assert shown.text.endswith(f"\n\n{incomplete}\n\nServer instructions:\nBe kind to maintainers.")
    assert shown.details["problems"] == ["cut\nshort", *"bcdef"]
    page = listed(tools, None, limit=1, offset=1)
    assert page.text == (
        "s (3 tools (not connected, cached)):\n\n- github_get_read_me - What it is\n\n1 of 3 — offset: 2 for more"
    )
    assert _details(page) == {
        "mode": "list", "server": "s", "tools": ["github_get_read_me"], "count": 3, "hasMore": True, "nextOffset": 2,
    }  # fmt: skip
    for answer, text, error in (
        (listed(state=ON), 'Server "s" has no tools.', None),
        (
            listed(entry=ServerEntry("s", "h", tools=())),
            'Server "s" has no cached tools (not connected).',
            None,
        ),
        (
            listed(waiting_for="slot", waiting=2.0),
            'Server "s" is not known yet (waiting 2 s for a slot); retry in a moment.',
            "not_connected",
        ),
        (
            listed(waiting_for="slot", waiting=2.0, last_line="npm"),
            'Server "s" is not known yet (waiting 2 s for a slot); retry in a moment. Its last line: npm',
            "not_connected",
        ),
        (
            listed(
                waiting_for="circuit breaker", waiting=1.0, retry_in=2.0, failed_ago=1.0, failure="no key"
            ),
            'Server "s" is not known yet (failed 1 s ago, next try in 2 s: no key); retry in a moment.',
            "not_connected",
        ),
        (
            listed(),
            f'Server "s" is configured but not connected. {FOR_MODELS.to_connect("s")}',
            "not_connected",
        ),
    ):
        assert (answer.text, answer.details.get("error")) == (text, error)
        assert ("waitsFor" in answer.details) == ("not known yet" in text)


def test_instructions_are_whole_or_an_error_and_a_list_shows_their_beginning() -> None:
    def entry(said: str | None) -> ServerEntry:
        return ServerEntry("s", "h", tools=(NOW,), instructions=said)

    for given, error in ((None, "not_connected"), (entry(None), "no_instructions"), (entry("Be."), None)):
        answer = texts.instructions("s", given, FOR_MODELS)
        assert answer.details.get("error") == error
        assert answer.details.get("instructions") == (None if error else "Be.")
    room = FakeRoom()
    for given in (None, entry(None), entry("")):
        row, tools = ServerStatus("clock", state=ON), room.index.tools("clock")
        text = texts.server_list(row, tools, given, FOR_MODELS, limit=9).text
        assert text == "clock (1 tool):\n\n- clock_now - The time"
    for said, shown in (
        ("a" * 300, "a" * 300),
        (f"  {'a' * 300}\n", "a" * 300),
        ("a" * 301, "a" * 300 + '...\n(mcp({ instructions: "clock" }) for all of them)'),
    ):
        row, tools = ServerStatus("clock", state=ON), room.index.tools("clock")
        text = texts.server_list(row, tools, entry(said), FOR_MODELS, limit=9).text
        assert text.endswith(f"\n\nServer instructions:\n{shown}")


def test_a_search_says_what_it_found_and_who_may_have_more() -> None:
    room = FakeRoom()

    def searched(**arguments: Any) -> McpToolAnswer:
        return CatalogueReader(room).answer(parse_request(arguments))

    unknown = 'Not known yet: fresh (not asked yet). Use mcp({ connect: "name" }) to ask one what it has.'
    assert searched(search="zebra").text == f'No tools matching "zebra". {unknown}'
    assert searched(search="zebra", server="clock").text == (
        'No tools matching "zebra" in "clock". Use mcp({}) to see available servers.'
    )
    found = searched(search="issue", includeSchemas=False, limit=1)
    assert found.text == (
        'Found 2 tools matching "issue":\n\n- github_create_issue - Create a new issue in a repository\n\n'
        f"{unknown}\n\n1 of 2 — offset: 1 for more"
    )
    assert (found.details["hasMore"], found.details["nextOffset"], found.details["count"]) == (True, 1, 2)
    assert [match["tool"] for match in found.details["matches"]] == ["github_create_issue"]
    assert "connectingServers" not in found.details
    both = searched(search="issue", server="github")
    assert "Not known yet" not in both.text
    first, second = both.text.split("\n\n")[1:]
    assert first.splitlines()[:3] == [
        "github_create_issue", "  Create a new issue in a repository", "  Parameters:",
    ]  # fmt: skip
    assert second.startswith("github_list_issues\n")
    last = searched(search="issue", includeSchemas=False, limit=1, offset=1)
    assert (last.details["hasMore"], last.details["nextOffset"]) == (False, None)
    room.rows["fresh"] = {"state": State.CONNECTING}
    connecting = 'Server "fresh" is still connecting; retry in a moment.'
    assert searched(search="issue").text.endswith(f"\n{connecting}")
    assert searched(search="zebra").text == f'No tools matching "zebra". {connecting}'
    assert searched(search="issue").details["connectingServers"] == ["fresh"]
    assert "unknownServers" not in searched(search="issue").details
    room.rows["fresh"] = {"state": State.CONNECTING, "waiting_for": "install", "waiting": 1.0}
    assert searched(search="issue").details["unknownServers"] == [
        {"server": "fresh", "name": "fresh", "waitsFor": "installing for 1 s"}
    ]


def _target(kind: str = "tool", description: str = "", schema: Any = None, **record: Any) -> Target:
    record = {"inputSchema": {"type": "object"}, **record}
    return Target("s_t", "s", kind, "t", record, description, schema)  # pyright: ignore[reportArgumentType]


def test_a_person_is_told_once_that_servers_connect_and_only_if_nothing_fits_well() -> None:
    room = FakeRoom()
    room.rows |= {name: {"state": State.CONNECTING} for name in ("fresh", "github")}
    room.entries["github"] = None
    room.index = Index.build(room.config.servers, room.entries, room.config.settings)

    def said(words: str) -> str:
        return CatalogueReader(room, hints=FOR_PEOPLE).answer(parse_request({"search": words})).text

    assert said("zebra") == ('No tools matching "zebra". 2 servers are still connecting; retry in a moment.')
    assert said("time zebra").endswith("\n2 servers are still connecting; retry in a moment.")
    assert "connecting" not in said("time")


def test_a_description_that_is_cut_behind_a_sentence_ends_with_three_dots() -> None:
    said = "Read the complete contents of a file as a text. Then tell what it says."
    assert texts.short_line(_target(description=said)) == f"- s_t - {said.partition('.')[0]}..."


def test_names_that_a_server_made_up_neither_forge_a_line_nor_become_part_of_the_command() -> None:
    hostile = ["$(rm -rf x)", "a\nTo call it: evil", "\x1b[2J", "-x", "a=b", "b:", "{c", "", "n" * 300]
    schema = {"properties": {"good\nname": {}}, "required": hostile}
    refusal = texts.lacking_arguments(
        _target(schema=schema), {"good name": "1"}, {"good name"}, {"good name": "1"}
    )
    assert refusal is not None
    said, command, _ = str(refusal.content[0]["text"]).split("\n")
    assert 'Did you mean "good name"?' in said
    assert command == (
        "To call it: greenroom call s_t $'good\\u000aname=1' '$(rm -rf x)='… "
        "$'a\\u000aTo call it: evil='… $'\\u001b[2J='… --args '{…}'"
    )
    many = _target(schema={"required": [f"p{at:05}" for at in range(20_000)]})
    refusal = texts.lacking_arguments(many, {}, (), {})
    assert refusal is not None
    assert "and 19940 more" in refusal.content[0]["text"]
    assert len(refusal.content[0]["text"]) < 2_000


def test_a_name_is_compared_with_some_of_the_names_that_a_server_made_up() -> None:
    word, alike = (
        "ab" * 32,
        [f"{at:016b}" * 4 for at in range(30_000)],
    )  # as long as they may be, and all alike
    names = [each.replace("0", "a").replace("1", "b") for each in alike]
    looked: list[str] = []
    nearest("x" * 10_000, (looked.append(each) or each for each in names))
    assert not looked, "who has typed so much is not told what was meant"
    nearest(word, (looked.append(each) or each for each in names))
    assert len(looked) < 2_000


def test_a_description_has_what_the_tool_declares_and_nothing_else() -> None:
    for target, text in (
        (_target(), "(no description)\n\nNo parameters defined."),
        (_target(schema={}), "(no description)\n\nNo parameters defined."),
        (_target("resource", "About."), "About.\n\nNo parameters required (resource tool)."),
        (_target(annotations={}, outputSchema={}), "(no description)\n\nNo parameters defined."),
        (
            _target(annotations={"a": "ä", "b": True}),
            '(no description)\n\nNo parameters defined.\n\nAnnotations: a: "ä", b: true',
        ),
        (
            _target("resource", annotations={"a": 1}, outputSchema={"type": "object"}),
            "(no description)\n\nNo parameters required (resource tool).",
        ),
    ):
        kind = "Type: Resource (reads from t)\n" if target.kind == "resource" else ""
        assert texts.describe(target).text == f"s_t\nServer: s\n{kind}\n{text}"
    odd = texts.describe(_target(inputSchema={"type": "object", "properties": {"a": {"type": "float"}}}))
    assert 'is corrected here: inputSchema.properties.a.type "float" is not a type\n' in odd.text
    told = texts.tool_details(_target(title="T", outputSchema=7, other=1, schema={"a": 1}))
    assert told == {
        "name": "s_t", "server": "s", "kind": "tool", "original": "t", "description": "",
        "inputSchema": {"a": 1}, "title": "T", "outputSchema": 7, "faults": ["outputSchema is not an object"],
    }  # fmt: skip
    assert "inputSchema" not in texts.tool_details(_target("resource", title="T"))
    assert texts.tool_details(_target(description="About."))["description"] == "About."
    assert (
        texts.full_entry(_target("resource")) == "s_t\n  (no description)\n  No parameters (resource tool)."
    )
    assert texts.short_line(_target(description="a\n b")) == "- s_t - a b"
    assert texts.short_line(_target()) == "- s_t"


@pytest.mark.parametrize("arguments", [{"describe": "now"}, {"tool": "now"}], ids=["describe", "call"])
def test_a_name_of_several_servers_is_refused_with_all_of_them(arguments: dict[str, str]) -> None:
    room = KnownRoom(tool_prefix=PrefixMode.NONE)
    room.learn("fresh", NOW, CREATE_ISSUE)
    result = room.result_of(arguments)
    details = result["_meta"]["greenroom/details"]
    assert details["error"] == "ambiguous_tool"
    assert len(details["candidates"]) == 2
    assert (result["isError"], room.called) == (True, [])


# ---- an answer within its bounds -------------------------------------------------------------------------------------


def test_of_details_the_largest_go_until_the_rest_fits() -> None:
    def sized(*sizes: int) -> dict[str, str]:
        return {chr(ord("a") + number): "x" * (size - 2) for number, size in enumerate(sizes)}

    half = DETAILS_LIMIT // 2
    for sizes, kept in (
        ((half, half), "ab"),
        ((half, half + 1), "a"),
        ((half + 1, 100, half), "bc"),
        ((100, half + 2, half + 1, half), "ad"),
        ((DETAILS_LIMIT + 1, DETAILS_LIMIT), "b"),
        ((DETAILS_LIMIT + 1, DETAILS_LIMIT + 2), ""),
    ):
        answer = McpToolAnswer.of("text", **sized(*sizes))
        slim = answer.slim()
        gone = {key: len(value) + 2 for key, value in sized(*sizes).items() if key not in kept}
        more: dict[str, Any] = {"omittedBytes": gone} if gone else {}
        assert slim.details == {key: sized(*sizes)[key] for key in kept} | more
        assert (slim is answer) == (not gone)
        assert slim.text == "text"
    assert McpToolAnswer.of("", a=object(), b=1).slim().details["b"] == 1, (
        "what cannot be written fits nowhere"
    )
    assert size_of("ä") == 4


def test_an_answer_is_an_error_only_if_it_says_so() -> None:
    right, wrong = McpToolAnswer.of("a", mode="x"), McpToolAnswer.of("a", mode="x", error="bad")
    content = [{"type": "text", "text": "a"}]
    assert right.as_result() == {"content": content, "_meta": {"greenroom/details": {"mode": "x"}}}
    assert wrong.as_result()["isError"] is True
    mixed = McpToolAnswer(({"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}))
    assert (mixed.text, mixed.details) == ("a\nb", {})


@pytest.mark.parametrize("how", ["answers", "fails", "breaks", "is cancelled"])
def test_asking_from_a_program_ends_as_its_request_does_and_leaves_nothing(how: str, backend: str) -> None:
    jobs: list[Job] = []
    cancelled: list[str] = []

    class Tool:
        def begin(self, arguments: Any, job: Job) -> None:
            jobs.append(job)
            job.run(self._work)

        async def _work(self) -> None:
            (job,) = jobs
            try:
                await anyio.lowlevel.checkpoint()
                if how == "answers":
                    job.answer({"content": []})
                elif how == "fails":
                    job.fail(-1, "no")
                elif how == "breaks":
                    raise ValueError("odd")
                else:
                    await anyio.sleep_forever()
            finally:
                cancelled.append(how)

    async def body() -> Any:
        tool: Any = Tool()
        with anyio.move_on_after(None) as scope:
            async with anyio.create_task_group() as group:
                if how == "is cancelled":

                    async def cancel() -> None:
                        await anyio.wait_all_tasks_blocked()
                        scope.cancel()

                    group.start_soon(cancel)
                return await ask(tool, {})

    if how in ("fails", "breaks"):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            run(backend, body)
        error: Any = caught.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, CallError)
        assert isinstance(error, Bug) == (how == "breaks")
        assert error.reach is Reach.NOT_SENT
        bug = "A bug in Greenroom, please report it: ValueError: odd"
        assert error.message == (bug if how == "breaks" else "no")
    else:
        assert run(backend, body) == ({"content": []} if how == "answers" else None)
    assert (jobs[0].ended, cancelled) == (True, [how])


# ---- patterns ------------------------------------------------------------------------------------------------------


def test_a_pattern_of_the_longest_length_is_matched_whatever_the_case() -> None:
    found = matcher("A" + "b?" * 127 + ".")
    assert (found("xxaZ"), found("b")) == (True, False)
    assert matcher("")("")


# ---- files of long answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ages", "max_total", "kept"),
    [
        ((100, 101), 100, [0]),  # just not too old, and just
        ((1, 2), 30, [0, 1]),  # just all fits
        ((1, 2), 29, [0]),
        ((2, 1), 29, [1]),  # the older goes
        ((1, 2, 3), 30, [0, 1]),
        ((1,), 9, []),
    ],
)
def test_files_are_kept_to_the_last_second_and_the_last_byte(
    ages: tuple[int, ...], max_total: int, kept: list[int], tmp_path: Path
) -> None:
    paths = [Spill(tmp_path).write("x" * 10) for _ in ages]
    for path, age in zip(paths, ages, strict=True):
        os.utime(path, (1000 - age, 1000 - age))
    (tmp_path / "other.txt").write_text("not ours")
    newest = Spill(tmp_path, max_age=100, max_total=max_total, clock=lambda: 1000.0).write("y" * 10)
    left = {path for path in tmp_path.iterdir() if path.name != "other.txt"}
    assert left == {newest, *(paths[number] for number in kept)}
    assert (tmp_path / "other.txt").exists()


def test_a_file_holds_the_whole_text_and_a_file_that_is_gone_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "ä" * (1 << 20) + "end\ud800"
    spill = Spill(tmp_path)
    gone = spill.write("x")
    glob = Path.glob

    def while_others_remove(self: Path, pattern: str) -> Any:
        for path in list(glob(self, pattern)):
            if path == gone:
                path.unlink()
            yield path

    monkeypatch.setattr(Path, "glob", while_others_remove)
    path = spill.write(text)
    assert path.read_bytes() == text.encode("utf-8", "replace")
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "text", "details"),
    [
        (
            CallError("it broke. Try again.", server="s", reach=Reach.SENT),
            "Failed to call tool: it broke. Try again.",
            {"server": "s", "error": "call_failed", "message": "it broke. Try again.", "reach": "sent"},
        ),
        (
            Busy("s", in_flight=7, queued=8, oldest_age=1.0, retry_in=2.5),
            "is busy: 7 calls in flight",
            {"server": "s", "error": "server_busy", "inFlight": 7, "queued": 8, "retryIn": 2.5},
        ),
        (UsageError("no such thing"), "no such thing", {"error": "invalid_request"}),
        (AmbiguousTool("x", ("a_x", "b_x")), "a_x", {"error": "ambiguous_tool"}),
        (UnknownServer("nobody"), "nobody", {"error": "server_not_found"}),
    ],
)
def test_each_error_of_a_call_is_told_with_what_a_program_needs(
    error: Any, text: str, details: dict[str, Any]
) -> None:
    answer = anyio.run(McpTool(FakeRoom()).why_refused, error, parse_request({"tool": "nobody_has"}))
    assert text in answer.content[0]["text"]
    assert {name: answer.details.get(name) for name in details} == details
    assert answer.details["mode"] == "call"
    assert ("reach" in answer.details) == (isinstance(error, CallError) and not isinstance(error, UsageError))


# ---- calls of megabytes ----------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value that was read in slices, all of it: some of its members may still be JSON."""
    if isinstance(value, msgspec.Raw):
        return json.loads(bytes(value))
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value


LONG_ARGS = {"x": "y" * (1 << 18), "n": 10**30, "z": [1, {"a": None}], "é": "\u2028"}


@for_each(
    "args",
    [
        {},
        {"a": 1},
        LONG_ARGS,
        json.dumps(LONG_ARGS),
        json.dumps(LONG_ARGS, ensure_ascii=False),
        json.dumps(LONG_ARGS, indent=1).replace("\n", "\r\n"),
        "{}",
        "",
        "{",
        "[" * 10,
        None,
        7,
        [1, {"a": 2}],
        True,
    ],
    ids=lambda args: repr(args)[:20],
)
def test_a_large_call_asks_for_the_same(args: Any) -> None:
    for arguments in ({"tool": "t", "args": args}, {"args": args, "server": "s", "limit": [1]}):
        for params in (
            {"name": "mcp", "arguments": arguments},
            {"arguments": arguments, "name": "mcp", "x": 1},
        ):
            for indent in (None, 1):
                raw = json.dumps(params, indent=indent).encode()
                found = read_large_call(msgspec.Raw(raw), [NAME])
                read = plain(found.arguments)
                said = read["args"]
                if isinstance(args, str) and len(args) > 1 << 18:
                    args_read, args_said = plain(said), json.loads(args)
                else:
                    args_read, args_said = said, args
                assert (found.name, args_read) == ("mcp", args_said)
                assert {**read, "args": args} == arguments


@for_each(
    ("raw", "text"),
    [
        (b"{", "truncated"),
        (b'{"name":7}', "Expected `str`"),
        (b'{"arguments":{}}', "missing required field `name`"),
        (b'{"name":"mcp","arguments":[1]}', "Expected `object"),
        (b'{"name":"mcp","arguments":7}', "Expected `object"),
        (b'{"name":"mcp","arguments":{"args":{"a":}}}', ""),
        (b'{"name":"mcp","arguments":{"args":"[%b]"}}' % (b"1," * 100_000), ""),
        (b'{"name":"mcp","arguments":{"args":"{%b}"}}' % (b"1," * 100_000), ""),
        (
            b'{"name":"mcp","arguments":{"args":"[%b"}}' % (b"[]," * MESSAGE_VALUES),
            f"more than {MESSAGE_VALUES:,} values and keys",
        ),
    ],
    ids=lambda said: repr(said)[:60],
)
def test_a_large_call_that_cannot_be_read_is_refused_as_invalid(raw: bytes, text: str) -> None:
    with pytest.raises(RpcFault, match=r"^Invalid params: ") as refused:
        read_large_call(msgspec.Raw(raw), [NAME])
    assert (refused.value.code, text in refused.value.message) == (-32602, True)


def test_only_the_arguments_of_a_tool_may_be_long_in_a_call_of_ours() -> None:
    given = b'{"a":"%b","b":[1]}' % (b"x" * (1 << 18))
    params = msgspec.Raw(b'{"name":"mcp","arguments":%b}' % given)
    with pytest.raises(RpcFault, match="may have 262,144 bytes beside args"):
        read_large_call(params, [NAME])
    assert read_large_call(params, ["another"]).arguments == msgspec.Raw(given)


@for_each("ascii_only", [True, False])
def test_long_arguments_in_a_text_arrive_as_they_are_wherever_it_is_cut(ascii_only: bool) -> None:
    """It is read in pieces: no escape, half of a pair or character may be cut through."""
    odd = '\\ " \n \u0000 é 漢字 😀😀 '
    for start in range(40):
        args = json.dumps({"x": "a" * start + (odd + "b" * 11) * 8_000}, ensure_ascii=False)
        raw = json.dumps({"name": "mcp", "arguments": {"tool": "t", "args": args}}, ensure_ascii=ascii_only)
        found = read_large_call(msgspec.Raw(raw.encode()), [NAME]).arguments
        assert isinstance(found, dict)
        assert json.loads(bytes(found["args"])) == json.loads(args)


@for_each(("args", "kind"), [("[1]", "array"), ('"x"', "string"), ("7", "number"), ("true", "boolean")])
def test_long_arguments_that_are_no_object_are_refused_as_short_ones(args: str, kind: str) -> None:
    raw = '{"name":"mcp","arguments":{"tool":"t","args":"%s%s"}}' % (  # noqa: UP031
        args.replace('"', '\\"'),
        " " * (1 << 18),
    )
    found = read_large_call(msgspec.Raw(raw.encode()), [NAME]).arguments
    assert isinstance(found, dict)
    with pytest.raises(UsageError, match=f"Invalid args: expected a JSON object, got {kind}"):
        parse_request(found)


def test_arguments_that_are_none_are_none_in_a_large_call_too() -> None:
    for raw in (b'{"name":"mcp"}', b'{"name":"mcp","arguments":null}'):
        assert read_large_call(msgspec.Raw(raw), [NAME]).arguments is None


# ---- a refusal, word by word -----------------------------------------------------------------------------------------


def test_what_nobody_answered_is_told_with_what_was_asked() -> None:
    for error, more in (
        (
            ApprovalNeeded("t", "s", reason="expired", why="why", question="q1"),
            {"error": "approval_required", "reason": "expired", "question": "q1"},
        ),
        (ApprovalDenied("t", "s"), {"error": "approval_denied"}),
        (Unavailable("s", failed_ago=7.4, retry_in=1.26), {"failedAgo": 7, "retryIn": 1.3}),
    ):
        answer = texts.failed_call(error, None)
        assert answer.text.startswith(error.message), "as it is, and not as a call that failed"
        details = {
            "mode": "call",
            "server": "s",
            "error": error.code,
            "message": error.message,
            "reach": "not_sent",
        }
        assert answer.details == {**details, **more}


def test_the_words_of_another_gateway_are_said_once_only_at_the_beginning() -> None:
    for said, told in (
        ("Failed to call tool: no", "Failed to call tool: no"),
        ("it said: Failed to call tool: no", "Failed to call tool: it said: Failed to call tool: no"),
    ):
        assert texts.failed_call(CallError(said, server="s"), None).text == told


def test_an_error_is_told_in_the_names_that_the_tool_has_here() -> None:
    override = ToolOverride.of({"rename": "new", "params": {"title": {"rename": "summary"}}})
    target = msgspec.structs.replace(_target(), override=override, original="create")
    answer = texts.failed_call(CallError("create needs title", server="s"), target)
    assert answer.text.startswith("Failed to call tool: new needs summary")
    assert answer.details["message"] == "create needs title"


def test_what_is_not_known_yet_names_each_owner_and_the_first_in_its_details() -> None:
    rows = [ServerStatus("a", waiting_for="slot"), ServerStatus("b")]
    answer = texts.not_known_yet("call", "a_b", rows, FOR_MODELS)
    assert answer.text.startswith(
        'Nothing is known of "a" and "b" yet, nor whether it has "a_b". Not known yet: a ('
    )
    assert (answer.details["server"], answer.details["error"]) == ("a", "not_known_yet")
    assert [each["name"] for each in answer.details["unknownServers"]] == ["a", "b"]
    answer = texts.unknown_tool(
        "call", "x", server="s", names=("s_a",), suggestions=(_target(),), unknown=rows, hints=FOR_MODELS
    )
    assert (answer.details["server"], answer.details["suggestions"]) == ("s", [_target().name])
    assert len(answer.details["unknownServers"]) == 2
    assert 'Server "s" has: s_a.' in answer.text
    for output in ("x" * 40, "x" * 41):
        for told in (texts.unknown_output(output), texts.unreadable_output(output, "why")):
            assert (told.details["output"], f'"{output[:40]}"' in told.text) == (output[:40], True)


def test_a_large_rest_says_how_large_it_is_if_that_can_be_known() -> None:
    for said, size in (({"a": "x" * 20_000}, 20_008), ({"a": object()}, None)):
        outcome = outcome_of("s", None, {"content": [], **said}, max_bytes=0, max_lines=0)
        about = outcome.details["mcpResult"]
        assert (about["omitted"], about["rawResultBytes"]) == (True, size)
        assert (outcome.rest is None) is (size is None)
        assert outcome.is_whole is (size is None)


@for_each("is_error", [True, False, None, 1, "true"])
def test_only_a_result_that_says_so_is_an_error(is_error: Any) -> None:
    outcome = outcome_of("s", None, {"content": [], "isError": is_error}, max_bytes=0, max_lines=0)
    assert outcome.details.get("error") == ("tool_error" if is_error is True else None)


def test_what_a_server_does_not_have_is_said_in_words() -> None:
    error = RemoteError("Method not found", server="s", rpc_code=-32601)
    assert texts.failed_call(error, None).text == (
        'Failed to call tool: server "s" does not have this (it answered: Method not found)'
    )
    assert "does not have" not in texts.failed_call(RemoteError("no", server="s", rpc_code=-32000), None).text


def test_of_a_tool_in_quarantine_nothing_is_said_that_is_not_known() -> None:
    """What its server says of it now is left out, and that is not a tool without parameters."""
    target = replace(
        _target(description="Not callable: it has changed.", schema={}), changed=("description",)
    )
    assert texts.describe(target).text.endswith("Not callable: it has changed.")
    assert texts.full_entry(target).endswith("Not callable: it has changed.")
