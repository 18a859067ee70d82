"""`mcp_execute` over HTTP and through `attach`: real gateways, real servers, real sandboxes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.test_http_serve import Served, served
from tests.gateway.test_meta_execute import sandbox_of
from tests.support.attached import background
from tests.support.gateway import gone_within
from tests.support.http_door import META, MODERN, messages, request
from tests.support.patience import PATIENCE, until
from tests.support.whole import whole

CODE = """
one = await call('own', 'echo', {'text': 'first'})
print(one['content'][0]['text'])
try:
    await call('own', 'nothing_at_all')
except Exception as error:
    print('refused')
'done'
"""
ENDLESS = "while True: pass"


def execute(code: str, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
    said: dict[str, Any] = {"name": "mcp_execute", "arguments": {"code": code}}
    return said if meta is None else {**said, "_meta": dict(meta)}


def text_of(result: Mapping[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])


def assert_ran(result: Mapping[str, Any]) -> None:
    said = text_of(result)
    assert not result.get("isError"), said
    assert "first" in said
    assert "refused" in said
    assert said.endswith("done")


ECHO = {"name": "mcp_call", "arguments": {"server": "own", "tool": "echo", "args": {"text": "hi"}}}


def assert_served(result: Mapping[str, Any]) -> None:
    """Another client is served: without a sandbox, which takes a second to start."""
    assert "hi" in text_of(result)


def over_http(one: Served, params: Any, number: int, headers: Mapping[str, str]) -> Any:
    answer = one.post(request("tools/call", number, params), **headers)
    assert answer.status_code == 200, answer.text
    return answer


def result_in(answer: Any, number: int) -> Mapping[str, Any]:
    return next(message["result"] for message in messages(answer) if message.get("id") == number)


def test_code_runs_over_http_in_both_eras(tmp_path: Path) -> None:
    with served(tmp_path, {"own": whole("own")}, "--expose", "meta") as one:
        session = one.session()
        listed = one.post(request("tools/list", 1), **session)
        assert "mcp_execute" in listed.text
        assert_ran(result_in(over_http(one, execute(CODE), 2, session), 2))
        modern = {
            "mcp-protocol-version": MODERN,
            "mcp-method": "tools/call",
            "mcp-name": "mcp_execute",
        }
        assert_ran(result_in(over_http(one, execute(CODE, META), 3, modern), 3))
        failed = result_in(over_http(one, execute("1 / 0"), 4, session), 4)
        assert failed["isError"]
        assert "ZeroDivisionError" in text_of(failed)
        until(lambda: not sandbox_of(one.process.pid), "the end of the sandboxes")


@pytest.mark.parametrize("how", ["cancels", "leaves"])
def test_a_run_over_http_ends_with_the_wish_for_it_while_others_are_served(tmp_path: Path, how: str) -> None:
    with served(tmp_path, {"own": whole("own")}, "--expose", "meta") as one:
        ann, ben = one.session(), one.session()
        ended: list[Any] = []
        running = threading.Thread(
            target=lambda: ended.append(one.post(request("tools/call", 7, execute(ENDLESS)), **ann))
        )
        running.start()
        sandbox = until(
            lambda: len(found := sandbox_of(one.process.pid)) >= 2 and found, "the interpreter to run"
        )
        assert_served(result_in(over_http(one, ECHO, 8, ben), 8))
        assert not ended
        if how == "cancels":
            cancel = {"method": "notifications/cancelled", "params": {"requestId": 7}}
            assert one.post({"jsonrpc": "2.0", **cancel}, **ann).status_code == 202
        else:
            assert one.http.delete(one.url, headers=ann).status_code in (200, 204)
        running.join(PATIENCE)
        assert not running.is_alive(), "its request ends with it"
        assert not gone_within(sandbox)
        assert_served(result_in(over_http(one, ECHO, 9, ben), 9))


def test_code_runs_for_each_client_of_a_shared_room_and_ends_with_its_client(tmp_path: Path) -> None:
    with background(tmp_path, {"own": whole("own")}) as room, ExitStack() as stack:
        ann, ben = (stack.enter_context(room.attach("--expose", "meta")) for _ in range(2))
        for client in (ann, ben):
            client.initialize()
            assert_ran(client.answer(client.send("tools/call", execute(CODE)))["result"])
        pid = room.pid()
        until(lambda: not sandbox_of(pid), "the end of the sandboxes")
        ann.send("tools/call", execute(ENDLESS))
        sandbox = until(lambda: len(found := sandbox_of(pid)) >= 2 and found, "the interpreter to run")
        ann.end(signal.SIGKILL)
        assert not gone_within(sandbox)
        assert_served(ben.answer(ben.send("tools/call", ECHO))["result"])
        assert ben.end() == 0


def test_a_shared_room_that_is_killed_leaves_no_sandbox_and_the_client_is_told(tmp_path: Path) -> None:
    with background(tmp_path, {"own": whole("own")}) as room, room.attach("--expose", "meta") as ann:
        ann.initialize()
        pid = room.pid()
        number = ann.send("tools/call", execute(ENDLESS))
        sandbox = until(lambda: len(found := sandbox_of(pid)) >= 2 and found, "the interpreter to run")
        room.kill()
        assert not gone_within(sandbox)
        answer = ann.answer(number)
        assert "error" in answer or answer["result"]["isError"], answer
        assert_ran(ann.answer(ann.send("tools/call", execute(CODE)))["result"])
        assert ann.end() == 0
