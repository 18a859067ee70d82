"""What each error tells a program and a person: its code, its message, its fields, and how far the request got."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

from tests.support.rows import for_each

from greenroom.catalogue.fingerprints import tool_changed
from greenroom.protocol import errors
from greenroom.protocol.errors import CallError, GreenroomError, Problem, Reach

SENT, ANSWERED, NOT_SENT = Reach.SENT, Reach.ANSWERED, Reach.NOT_SENT
PLAIN = {"server": "", "reach": "not_sent", "tool": None}
OF_A = {**PLAIN, "server": "a"}
WARNING = Problem("m.json", "is odd", fatal=False)
BROKEN = Problem("n.json: servers.a", "is empty")

# An error; its code and its message; its fields.
ERRORS: list[tuple[GreenroomError, str, str, dict[str, Any]]] = [
    (
        errors.ConfigError([WARNING, BROKEN]),
        "config_error",
        "m.json: is odd\nn.json: servers.a: is empty",
        {
            "problems": [
                {"where": "m.json", "what": "is odd", "fatal": False, "code": "config_error", "step": ""},
                {"where": "n.json: servers.a", "what": "is empty", "fatal": True, "code": "config_error", "step": ""},
            ]
        },
    ),
    (errors.UsageError("no"), "invalid_request", "no", PLAIN),
    (errors.UsageError("no", code="other", server="a"), "other", "no", {**OF_A, "code": "other"}),
    (
        errors.UnknownServer("a", ("b", "c")),
        "server_not_found",
        'Server "a" not found. Configured: b, c.',
        {**OF_A, "known": ["b", "c"]},
    ),
    (
        errors.UnknownServer("a"),
        "server_not_found",
        'Server "a" not found. No servers are configured.',
        {**OF_A, "known": []},
    ),
    (
        errors.UnknownTool("t", suggestions=("u", "v")),
        "tool_not_found",
        'Tool "t" not found. Did you mean: u, v',
        {**PLAIN, "tool": "t", "suggestions": ["u", "v"], "connected": []},
    ),
    (
        errors.UnknownTool("t", message="Not here."),
        "tool_not_found",
        "Not here.",
        {**PLAIN, "tool": "t", "suggestions": [], "connected": []},
    ),
    (
        errors.UnknownPrompt("p", ("q",)),
        "prompt_not_found",
        'Prompt "p" not found. There are: q.',
        {**PLAIN, "prompt": "p"},
    ),
    (
        errors.UnknownPrompt("p"),
        "prompt_not_found",
        'Prompt "p" not found. No prompts are known.',
        {**PLAIN, "prompt": "p"},
    ),
    (
        errors.UnknownSkill("s", ("q",)),
        "skill_not_found",
        'Skill "s" not found. There are: q.',
        {**PLAIN, "skill": "s"},
    ),
    (
        errors.UnknownSkill("s"),
        "skill_not_found",
        'Skill "s" not found. No skills are known.',
        {**PLAIN, "skill": "s"},
    ),
    (
        errors.UnknownResource("u:x", ("a", "b")),
        "resource_not_found",
        'Resource "u:x" is not listed by any server. Use a URI as it is listed, or say which server has it: a, b.',
        {**PLAIN, "uri": "u:x"},
    ),
    (
        errors.UnknownResource("u:x"),
        "resource_not_found",
        'Resource "u:x" is not listed by any server. No server has resources.',
        {**PLAIN, "uri": "u:x"},
    ),
    (
        errors.AmbiguousTool("t", ("a_t", "b_t")),
        "ambiguous_tool",
        'Tool "t" matches multiple servers. Use one of these, or say which server: a_t, b_t',
        {**PLAIN, "tool": "t", "candidates": ["a_t", "b_t"]},
    ),
    (
        errors.AmbiguousTool("p", (), what="Prompt"),
        "ambiguous_tool",
        'Prompt "p" matches multiple servers. Use one of these, or say which server: ',
        {**PLAIN, "tool": "p", "candidates": []},
    ),
    (errors.RpcRefusal(0, "no", ""), "refused", "no", {"rpc_code": 0, "data": ""}),
    (errors.BadArguments("no", server="a", tool="t"), "invalid_request", "no", {**OF_A, "tool": "t"}),
    (
        errors.Unavailable("a", failed_ago=6.6, retry_in=12.4, reason="it exited."),
        "server_unavailable",
        'Server "a" not available (failed 7 s ago): it exited. Retry in 12 s.',
        {**OF_A, "failed_ago": 6.6, "retry_in": 12.4, "reason": "it exited."},
    ),
    (
        errors.Unavailable("a", failed_ago=0.0, retry_in=0.2),
        "server_unavailable",
        'Server "a" not available (failed 0 s ago). Retry in 1 s.',
        {**OF_A, "failed_ago": 0.0, "retry_in": 0.2, "reason": ""},
    ),
    (
        errors.Busy("a", in_flight=1, queued=2, oldest_age=3.25, retry_in=4.75, why="full"),
        "server_busy",
        'Server "a" is busy: 1 call in flight, 2 queued, the oldest for 3.2 s; full. Retry in 4.8 s.',
        {**OF_A, "in_flight": 1, "queued": 2, "oldest_age": 3.25, "retry_in": 4.75},
    ),
    (
        errors.Busy("a", in_flight=1, queued=2, oldest_age=3.25, retry_in=4.75),
        "server_busy",
        'Server "a" is busy: 1 call in flight, 2 queued, the oldest for 3.2 s. Retry in 4.8 s.',
        {**OF_A, "in_flight": 1, "queued": 2, "oldest_age": 3.25, "retry_in": 4.75},
    ),
    (
        errors.RateLimited("a_t", "a", limit="settings.limits.t: 1/s", retry_in=0.75),
        "rate_limited",
        'The call of "a_t" is over a limit (settings.limits.t: 1/s) and was not sent. Retry in 0.8 s.',
        {**OF_A, "tool": "a_t", "limit": "settings.limits.t: 1/s", "retry_in": 0.75},
    ),
    (
        errors.RepeatedCall("a_t", "a", what="it was made", limit="settings.loopGuard.t: 1/s", retry_in=0.75),
        "repeated_call",
        ('The call of "a_t" was not sent: it was made (settings.loopGuard.t: 1/s). The answer will hardly be another '
        "one: go on with what you have, or call with other arguments. The same call may be made again in 0.8 s."),
        {**OF_A, "tool": "a_t", "limit": "settings.loopGuard.t: 1/s", "retry_in": 0.75},
    ),
    (errors.ServerDown("down", server="a"), "server_not_connected", "down", OF_A),
    (errors.NeedsAuth("log in", server="a"), "auth_required", "log in", OF_A),
    (errors.SessionNeeded("open one", server="a"), "session_needed", "open one", OF_A),
    (
        errors.CredentialNeeded("a", ("X", "Y")),
        "credential_needed",
        ('Server "a" needs ${session.X}, ${session.Y}, and this session does not give it; nothing was started. '
        'It is given when the session is opened: by a client over HTTP in a header that http.sessionHeaders names, '
        'by one of `greenroom attach` in its environment, by a program as variables={"X": …, "Y": …}.'),
        {**OF_A, "variables": ["X", "Y"]},
    ),
    (
        errors.CredentialNeeded("a", ("X",), has_session=False),
        "credential_needed",
        ('Server "a" needs ${session.X}, and this call is in no session; nothing was started. '
        'It is given when the session is opened: by a client over HTTP in a header that http.sessionHeaders names, '
        'by one of `greenroom attach` in its environment, by a program as variables={"X": …}.'),
        {**OF_A, "variables": ["X"]},
    ),
    (
        errors.ApprovalDenied("a_t", "a"),
        "approval_denied",
        ('The call of tool "a_t" of server "a" was not allowed; it was not sent. '
        "Ask the user before you try it again."),
        {**OF_A, "tool": "a_t"},
    ),
    (
        errors.ApprovalNeeded("a_t", "a", "expired", "nobody answered", "Allow?"),
        "approval_required",
        'The call of tool "a_t" of server "a" needs a person\'s approval, and nobody answered; it was not sent.',
        {**OF_A, "tool": "a_t", "reason": "expired", "question": "Allow?"},
    ),
    (
        tool_changed("a_t", "a", "t", ("description",)),
        "tool_changed",
        ('Tool "a_t" was not called: its description has changed since its owner last saw it. '
        "To see and allow it, the owner runs: greenroom accept a t"),
        {**OF_A, "tool": "a_t"},
    ),
    (errors.Drained("late", server="a", reach=SENT), "drained", "late", {**OF_A, "reach": "sent"}),
    (errors.CallCancelled("left", server="a", reach=SENT), "cancelled", "left", {**OF_A, "reach": "sent"}),
    (errors.RoomClosed("closed", server="a"), "server_not_connected", "closed", OF_A),
    (
        errors.ConnectFailed(
            "it exited", server="a", exit_code=0, stderr_tail=["one", "two"], kind=errors.FailureKind.EXIT
        ),
        "connect_failed",
        'Failed to connect to "a": it exited',
        {
            **OF_A,
            "kind": "exit",
            "reason": "it exited",
            "is_lasting": False,
            "exit_code": 0,
            "stderr_tail": ["one", "two"],
        },
    ),
    (
        errors.ConnectFailed("it is gone", server="a"),
        "connect_failed",
        'Failed to connect to "a": it is gone',
        {**OF_A, "kind": "other", "reason": "it is gone", "is_lasting": False, "exit_code": None, "stderr_tail": []},
    ),
    (
        errors.ServerLost("lost", server="a", reach=SENT, tool="t", exit_code=0, stderr_tail=["one"]),
        "call_failed",
        "lost",
        {**OF_A, "kind": "other", "reach": "sent", "tool": "t", "exit_code": 0, "stderr_tail": ["one"]},
    ),
    (
        errors.CallTimeout("late", server="a", reach=SENT, tool="t", timeout=2.5),
        "timeout",
        "late",
        {**OF_A, "reach": "sent", "tool": "t", "timeout": 2.5},
    ),
    (
        errors.RemoteError("no", server="a", rpc_code=0, data=[], tool="t"),
        "call_failed",
        "no",
        {**OF_A, "reach": "answered", "tool": "t", "rpc_code": 0, "rpc_message": "no", "data": []},
    ),
    (
        errors.ToolFailed("no ink", server="a", tool="t", result={"isError": True}),
        "tool_error",
        "no ink",
        {**OF_A, "reach": "answered", "tool": "t", "result": {"isError": True}},
    ),
    (errors.InputRefused("no", server="a", reach=SENT), "input_refused", "no", {**OF_A, "reach": "sent"}),
    (errors.ProtocolFault("odd", server="a", reach=ANSWERED), "protocol_error", "odd", {**OF_A, "reach": "answered"}),
    (errors.Bug("oh", server="a"), "bug", "oh", OF_A),
    (CallError("no", server="a", reach=SENT, tool="t"), "call_failed", "no", {**OF_A, "reach": "sent", "tool": "t"}),
]  # fmt: skip
CALL_ERRORS = [error for error, *_ in ERRORS if isinstance(error, CallError)]


def _of(error: GreenroomError) -> str:
    return type(error).__name__


@for_each(("error", "code", "message", "fields"), ERRORS, ids=lambda each: type(each).__name__)
def test_an_error_tells_its_code_its_message_and_all_its_fields(
    error: GreenroomError, code: str, message: str, fields: dict[str, Any]
) -> None:
    assert (error.code, error.message, str(error)) == (code, message, message)
    assert error.as_dict() == {"code": code, "message": message, **fields}


def test_every_error_is_in_the_table_above() -> None:
    every = {
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, GreenroomError)
    }
    assert {type(error) for error, *_ in ERRORS} == every - {GreenroomError}


@for_each("error", CALL_ERRORS, ids=_of)
def test_each_call_has_its_own_copy_of_an_error(error: CallError) -> None:
    for reach in (None, *Reach):
        copy = error.copy(reach)
        assert copy is not error
        assert type(copy) is type(error)
        moved = {} if reach is None else {"reach": reach.value}
        assert copy.as_dict() == {**error.as_dict(), "tool": None, **moved}
        copy.tool = "another call's"
    assert error.tool != "another call's"


@for_each("error", [error for error, *_ in ERRORS], ids=_of)
def test_every_text_of_an_error_can_be_hidden_and_its_reach_stays_what_it_is(error: GreenroomError) -> None:
    copy = error.copy() if isinstance(error, CallError) else type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)

    def hidden(text: str) -> str:
        return "\n".join(f"<{len(line)}>" for line in text.split("\n"))

    copy.hide(hidden)
    said = copy.as_dict()
    assert copy.message == hidden(error.message)
    for name, value in error.as_dict().items():
        if name in ("reach", "kind"):
            assert type(getattr(copy, name)) is type(getattr(error, name)), "not only a string"
            assert said[name] == value
        elif name != "code" and isinstance(value, str):
            assert said[name] == hidden(value)
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):  # pyright: ignore[reportUnknownVariableType]
            assert said[name] == [f"<{len(each)}>" for each in value]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        elif name != "code":
            assert said[name] == value


def test_a_problem_is_fatal_unless_it_says_otherwise_and_can_be_written_anywhere() -> None:
    assert (BROKEN.fatal, BROKEN.code, str(BROKEN)) == (
        True,
        "config_error",
        "n.json: servers.a: is empty",
    )
    assert str(Problem("a\ud800", "b\udfff")) == "a\\ud800: b\\udfff"


def test_a_reach_in_words_says_whether_the_call_may_have_run() -> None:
    assert {reach.value: reach.words for reach in Reach} == {
        "not_sent": "the call was not sent",
        "sent": "the call was sent and may have run",
        "answered": "the call was sent and may have run",
    }


STATUSES: Mapping[int, set[str]] = {
    400: {"AmbiguousTool", "BadArguments", "UsageError"},
    403: {"ApprovalDenied", "ApprovalNeeded", "CredentialNeeded"},
    404: {"UnknownPrompt", "UnknownResource", "UnknownServer", "UnknownSkill", "UnknownTool"},
    409: {"CallCancelled"},
    422: {"InputRefused", "ToolFailed"},
    429: {"RateLimited", "RepeatedCall"},
    500: {"Bug", "CallError", "ConfigError", "RpcRefusal", "SessionNeeded"},
    502: {"ConnectFailed", "ProtocolFault", "RemoteError", "ServerLost"},
    503: {"Busy", "Drained", "NeedsAuth", "RoomClosed", "ServerDown", "ToolChanged", "Unavailable"},
    504: {"CallTimeout"},
}


def test_a_web_service_answers_each_error_with_the_status_that_says_who_can_mend_it() -> None:
    found: dict[int, set[str]] = {}
    for error, *_ in ERRORS:
        found.setdefault(error.http_status, set()).add(type(error).__name__)
    assert found == STATUSES


@for_each("error", [row[0] for row in ERRORS], ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: GreenroomError) -> None:
    """A worker of a pool raises it there, and whoever waits catches it here."""
    error.add_note("as seen from there")
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), there.args, vars(there)) == (
        type(error), str(error), error.args, vars(error),
    )  # fmt: skip
    assert there.as_dict() == error.as_dict()
    assert there.http_status == error.http_status
    assert copy.copy(error).as_dict() == error.as_dict()
