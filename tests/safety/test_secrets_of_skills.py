"""Credentials that are planted in skills, in what is said about them and in `_meta` come out at no door that scrubs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import Gateway, serve
from tests.support.lister import lister, skill, tool

OWN = "value-of-the-servers-own-secret"
TOKENS = ["sk-abcdefghijklmnopqrstuvwx", "ghp_abcdefghijklmnopqrst0123", "AKIA0123456789ABCDEF"]
PLANTED = [OWN, *TOKENS]
TEXT = " and ".join(PLANTED)
ROOT = "skill://greenroom/s/tags"


def ask(gateway: Gateway, method: str, **params: Any) -> Any:
    answer = gateway.answer(gateway.send(method, params))
    return answer.get("result") or answer["error"]


def server(folder: Path, **more: Any) -> dict[str, Any]:
    made = skill("tags", {"references/a.md": f"Use {TEXT}.\n"}, description=f"Tag with {TEXT}")
    made["skills"][0]["_meta"] = {"x": TEXT, "password": "hunter2!"}
    children = [{"uri": "skill://tags/SKILL.md", "name": TEXT, "description": TEXT}]
    entry = lister(
        folder,
        "s",
        tools=[tool("say")],
        results={"say": {"content": [{"type": "text", "text": "said"}], "_meta": {"x": TEXT}}},
        capabilities={"extensions": {"io.modelcontextprotocol/skills": {"directoryRead": True}}},
        folders={"skill://tags": {"resources": children, "_meta": {"x": TEXT}}},
        **made,
    )
    return {"s": {**entry, "env": {"API_TOKEN": OWN}, **more}}


def leaks(said: Any) -> list[str]:
    text = json.dumps(said)
    return [each for each in [*PLANTED, "hunter2!"] if each in text]


@pytest.mark.parametrize("rule", ["all-names", "off"])
def test_at_direct_no_entry_file_or_folder_of_a_skill_shows_one(tmp_path: Path, rule: str) -> None:
    """With `off` they all do: what is planted is really there."""
    with serve(tmp_path, server(tmp_path, scrub=rule), "--expose", "direct") as gateway:
        gateway.initialize()
        said = {
            "result": ask(gateway, "tools/call", name="s_say", arguments={}),
            "list": ask(gateway, "skills/list"),
            "entry": ask(gateway, "skills/get", uri=f"{ROOT}/SKILL.md"),
            "instructions": ask(gateway, "resources/read", uri=f"{ROOT}/SKILL.md"),
            "file": ask(gateway, "resources/read", uri=f"{ROOT}/references/a.md"),
            "folder": ask(gateway, "resources/directory/read", uri=ROOT),
        }
        shown = {name: bool(leaks(each)) for name, each in said.items()}
        assert shown == dict.fromkeys(said, rule == "off")
        assert "REDACTED" in json.dumps(said) or rule == "off"
        assert gateway.end() == 0


@pytest.mark.parametrize("rule", ["mcp", "off"])
def test_a_model_is_shown_none_in_what_it_reads_of_a_skill(tmp_path: Path, rule: str) -> None:
    with serve(tmp_path, server(tmp_path, scrub=rule)) as gateway:
        gateway.initialize()
        said = {
            "file": gateway.mcp(skill="s_tags/references/a.md"),
            "result": gateway.mcp(tool="s_say"),
        }
        assert "Use " in json.dumps(said["file"])
        assert bool(leaks(said["file"])) is (rule == "off")
        assert not leaks(said["result"]) or rule == "off"
        assert not leaks(gateway.mcp(skill="s_tags"))
        assert gateway.end() == 0


@pytest.mark.parametrize("rule", ["mcp", "off"])
def test_what_a_server_says_of_itself_is_shown_to_a_model_without_what_it_was_given(
    tmp_path: Path, rule: str
) -> None:
    given = server(tmp_path, scrub=rule)
    with serve(tmp_path, given) as gateway:
        gateway.initialize()
        gateway.mcp(connect="s")
        said = {
            "found": gateway.mcp(search="tag"),
            "listed": gateway.mcp(server="s"),
            "described": gateway.mcp(describe="s_tags"),
        }
        shown = {name: OWN in json.dumps(each) for name, each in said.items()}
        assert shown == dict.fromkeys(said, rule == "off")
        assert all("tags" in json.dumps(each) for each in said.values())
        assert gateway.end() == 0
