"""T35: a message of very many values costs its own call, and nobody else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.gateway import faulty, serve
from tests.support.stalls import assert_not_held_up, hostile, memory_of, waits

from greenroom.actors.call import LARGE_RESULT, Call

HEAD = '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":['
LARGE: dict[str, Any] = {
    "batch": ("[", "{},", "{}]\n", 16 << 20),
    "arrays": (HEAD, "[],", "[]]}}\n", 48 << 20),
    "numbers": (HEAD, "1,", "1]}}\n", 48 << 20),
}


@pytest.mark.parametrize("kind", LARGE)
def test_t35_a_message_of_very_many_values_freezes_nobody(tmp_path: Path, kind: str) -> None:
    before, middle, after, size = LARGE[kind]
    said = {"before": before, "middle": middle, "count": size // len(middle), "after": after}
    servers = {"good": faulty(tmp_path, "good"), "bad": hostile("2025-03-26")}
    # Nothing in the batch answers the call: it ends by its time.
    patience = 5_000 if kind == "batch" else 50_000
    settings: dict[str, Any] = {"requestTimeoutMs": patience, "stopTimeoutMs": 500}
    with serve(tmp_path, servers, "--expose", "direct", **settings) as gateway:
        gateway.initialize()
        waits(gateway, "good_echo", 5)
        gateway.answer(gateway.send("tools/call", {"name": "bad_echo", "arguments": {}}))
        calm, held = waits(gateway, "good_echo"), memory_of(gateway)
        number = gateway.send("tools/call", {"name": "bad_say", "arguments": said})
        meanwhile = waits(gateway, "good_echo")

        answer = json.dumps(gateway.answer(number))
        assert "over the bound of" in answer or kind == "batch", answer[:300]
        assert_not_held_up(calm, meanwhile)
        assert memory_of(gateway) - held < 64 << 20
        assert gateway.end() == 0


def test_t35_a_long_text_full_of_brackets_and_commas_is_one_value(tmp_path: Path) -> None:
    said = {
        "before": '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"',
        "middle": '[{\\"a\\",1}],\\\\',
        "count": 300_000,
        "after": '"}]}}\n',
    }
    with serve(tmp_path, {"bad": hostile()}, "--expose", "direct") as gateway:
        gateway.initialize()
        gateway.answer(gateway.send("tools/call", {"name": "bad_echo", "arguments": {}}))
        answer = gateway.answer(gateway.send("tools/call", {"name": "bad_say", "arguments": said}))
        assert answer["result"]["content"][0]["text"] == '[{"a",1}],\\' * 300_000
        assert gateway.end() == 0


@in_real_time
async def test_whoever_was_answered_meanwhile_comes_before_the_caller_of_a_large_result() -> None:
    order, meanwhile = list[str](), anyio.Event()
    call = Call("tools/call", {})
    call.ended, call.result = True, b"x" * LARGE_RESULT

    async def caller() -> None:
        meanwhile.set()  # as an answer that came in while the large one was read
        await call.wait()
        order.append("large")

    async def other() -> None:
        await meanwhile.wait()
        order.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(caller)
    assert order == ["other", "large"]
