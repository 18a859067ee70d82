"""The errors that a call ends with: each one's text, its class, and every field that a program may read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.actors import call_errors
from greenroom.actors.call import Call
from greenroom.actors.peer import LostReason, connect_failed, login_needed
from greenroom.config.credentials import SecretValue
from greenroom.config.scrubbing import Secrets
from greenroom.protocol.errors import (
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    Drained,
    NeedsAuth,
    ProtocolFault,
    Reach,
    RemoteError,
    ServerLost,
)
from greenroom.protocol.jsonrpc.terms import RpcError
from greenroom.protocol.lifecycle import Cause, Ending, Reason

NOT_SENT = "the call was not sent"
SENT = "the call was sent and may have run"
DIED = LostReason("exited with code 3", 3, ("one", "two"), Reason.DIED)


def call(
    reach: Reach = Reach.SENT, timeout: float | None = 60.0, deadline: float = 160.0, total: float = 700.0
) -> Call:
    """A call that was sent at 100."""
    made = Call("tools/call", {}, tool="pay", timeout=timeout)
    made.reach, made.sent_at, made.deadline, made.total_deadline = reach, 100.0, deadline, total
    return made


@for_each(
    ("error", "kind", "text", "fields"),
    [
        (
            call_errors.not_ready_error("s", 45.0, "still connecting"),
            CallTimeout,
            f'Server "s" was not ready within 45 s (still connecting); {NOT_SENT}.',
            {"reach": Reach.NOT_SENT, "timeout": 45.0},
        ),
        (
            call_errors.not_started_error("s", 0.5, "8 others start"),
            CallTimeout,
            f'Server "s" was not started within 0.5 s: 8 others start; {NOT_SENT}.',
            {"reach": Reach.NOT_SENT, "timeout": 0.5},
        ),
        (
            call_errors.timed_out_error("s", call(Reach.NOT_SENT), 45.0),
            CallTimeout,
            f'Server "s" read nothing for 45 s; {NOT_SENT}.',
            {"reach": Reach.NOT_SENT, "timeout": 45.0},
        ),
        (
            call_errors.timed_out_error("s", call(), 45.0),
            CallTimeout,
            f'Server "s" did not answer within 60 s; {SENT}.',
            {"reach": Reach.SENT, "timeout": 60.0},
        ),
        (
            call_errors.timed_out_error("s", call(deadline=700.0), 45.0),
            CallTimeout,
            f'Server "s" did not finish within 600 s, despite its progress; {SENT}.',
            {"reach": Reach.SENT, "timeout": 600.0},
        ),
        (  # its own time is as long as the total: no progress is to blame
            call_errors.timed_out_error("s", call(timeout=600.0, deadline=700.0), 45.0),
            CallTimeout,
            f'Server "s" did not answer within 600 s; {SENT}.',
            {"reach": Reach.SENT, "timeout": 600.0},
        ),
        (
            call_errors.timed_out_error("s", call(timeout=0.0, deadline=100.0), 45.0),
            CallTimeout,
            f'Server "s" did not answer within 0 s; {SENT}.',
            {"reach": Reach.SENT, "timeout": 0.0},
        ),
        (
            call_errors.drained_error("s", call(), Ending(Cause.RESTART)),
            Drained,
            f'Server "s" was drained ({Ending(Cause.RESTART)}) before the call was done; {SENT}.',
            {"reach": Reach.SENT},
        ),
        (
            call_errors.lost_error("s", DIED, Reach.SENT),
            ServerLost,
            f'Server "s" was lost: exited with code 3 (last on stderr: one — two); {SENT}.',
            {"reach": Reach.SENT, "exit_code": 3, "stderr_tail": ("one", "two")},
        ),
        (
            call_errors.lost_error("s", LostReason("closed its stdout", 0), Reach.NOT_SENT, "gave no answer"),
            ServerLost,
            f'Server "s" gave no answer: closed its stdout; {NOT_SENT}.',
            {"reach": Reach.NOT_SENT, "exit_code": 0, "stderr_tail": ()},
        ),
        (
            call_errors.answer_error(
                "s", call(Reach.ANSWERED), RpcError(-32602, "no such bill", {"bill": 0})
            ),
            RemoteError,
            "no such bill",
            {"rpc_code": -32602, "data": {"bill": 0}, "tool": "pay", "reach": Reach.ANSWERED},
        ),
        (
            call_errors.answer_error("s", call(Reach.ANSWERED), RpcError(-32603, "no JSON", fault=True)),
            ProtocolFault,
            "no JSON",
            {"tool": "pay", "reach": Reach.ANSWERED},
        ),
        (
            connect_failed("s", DIED),
            ConnectFailed,
            "exited with code 3 (last on stderr: one — two)",
            {"reason": DIED.in_words(), "exit_code": 3, "stderr_tail": ("one", "two")},
        ),
        (
            login_needed("my server", "401"),
            NeedsAuth,
            "Server \"my server\" needs a login: 401. Run: greenroom auth 'my server' - or set",
            {"reach": Reach.NOT_SENT},
        ),
    ],
)
def test_each_error_says_what_happened_and_tells_it_to_programs(
    error: CallError, kind: type[CallError], text: str, fields: dict[str, Any]
) -> None:
    assert type(error) is kind
    assert text in str(error)
    assert error.server == ("my server" if kind is NeedsAuth else "s")
    assert {name: getattr(error, name) for name in fields} == fields


@for_each(
    ("accepted", "oldest", "again"),
    [((), 0.0, 0.1), ((99.95, 100.0), 0.05, 0.1), ((99.0, 97.0, 98.0), 3.0, 3.0), ((10.0, 99.0), 90.0, 5.0)],
)
def test_busy_says_for_how_long_it_has_been_so_and_when_to_try_again(
    accepted: tuple[float, ...], oldest: float, again: float
) -> None:
    calls = [call() for _ in accepted]
    for one, when in zip(calls, accepted, strict=True):
        one.accepted_at = when
    error = call_errors.busy_error("s", calls, 100.0, in_flight=7, queued=3, why="too many bytes")
    assert (type(error), error.server, error.in_flight, error.queued) == (Busy, "s", 7, 3)
    assert error.oldest_age == pytest.approx(oldest)
    assert error.retry_in == pytest.approx(again)
    assert "7 calls in flight, 3 queued" in str(error)
    assert "too many bytes" in str(error)
    assert not math.isinf(error.retry_in)


KNOWN = Secrets([SecretValue("TOKEN", "tok-0123456789")])


@for_each(
    ("data", "shown"),
    [
        (None, None),
        (0, 0),
        ("", ""),
        (False, False),
        ([], []),
        ({"n": 1.5, "text": "plain"}, {"n": 1.5, "text": "plain"}),
        ("it is tok-0123456789", "it is ***"),
        ({"a": ["tok-0123456789", 7]}, {"a": ["***", 7]}),
        ({"deep": {"tok-0123456789": 1}}, {"deep": {"***": 1}}),
        ({"json": '{"key": "tok-0123456789"}'}, {"json": '{"key": "***"}'}),
        ("https://anna:hunter2@example.org/", "https://***@example.org/"),
    ],
)
def test_what_a_server_answers_as_an_error_loses_its_secrets_and_nothing_else(data: Any, shown: Any) -> None:
    said = RpcError(-32000, "no entry for tok-0123456789", data, fault=True)
    error = call_errors.without_secrets(said, KNOWN)
    assert "tok-0123456789" not in error.message
    assert error.message.startswith("no entry for ")
    assert (error.code, error.fault, error.broken) == (-32000, True, said.broken)
    assert (type(error.data), error.data) == (type(shown), shown)
