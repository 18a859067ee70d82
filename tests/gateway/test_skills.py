"""`greenroom serve` as a real process before servers with skills (`io.modelcontextprotocol/skills`)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import HELLO, Gateway, serve
from tests.support.lister import lister, skill, tool

META = "io.modelcontextprotocol/"
EXTENSION = f"{META}skills"
MODERN = {"_meta": {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}}
FORMS = "Forms are in PDF.\n"
SERVER = {"tools": [tool("echo")]}


def skilled(folder: Path, name: str, *paths: str, **more: Any) -> dict[str, Any]:
    made = [skill(path, {"references/forms.md": FORMS}, description=f"How {name} does it") for path in paths]
    contents = {uri: said for each in made for uri, said in each["contents"].items()}
    skills = [entry for each in made for entry in each["skills"]]
    return lister(folder, name, **{**SERVER, "skills": skills, "contents": contents, **more})


def ask(gateway: Gateway, method: str, **params: Any) -> Any:
    answer = gateway.answer(gateway.send(method, params))
    return answer.get("result") or answer["error"]


@pytest.mark.parametrize("said", [{}, MODERN], ids=["2025-11-25", "2026-07-28"])
def test_the_skills_of_all_servers_are_listed_and_read_under_uris_that_name_their_server(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    given = {
        "one": skilled(tmp_path, "one", "team/branches", "tags"),
        "two": skilled(tmp_path, "two", "team/branches"),
        "none": lister(tmp_path, "none", **SERVER),
    }
    with serve(tmp_path, given, "--expose", "direct") as gateway:
        if not said:
            ask(gateway, "initialize", **HELLO)
            gateway.notify("notifications/initialized")
        connect(gateway, *given, **said)
        listed = ask(gateway, "skills/list", **said)
        assert [each["uri"] for each in listed["skills"]] == [
            "skill://greenroom/one/team/branches/SKILL.md",
            "skill://greenroom/one/tags/SKILL.md",
            "skill://greenroom/two/team/branches/SKILL.md",
        ]
        assert [each["frontmatter"]["description"] for each in listed["skills"]] == [
            *["How one does it"] * 2,
            "How two does it",
        ]
        assert (listed.get("resultType"), listed.get("ttlMs"), listed.get("cacheScope")) == (
            ("complete", 0, "private") if said else (None, None, None)
        )
        for entry in listed["skills"]:
            root = entry["uri"].removesuffix("SKILL.md")
            assert [file["uri"] for file in entry["resources"]] == [
                f"{root}SKILL.md",
                f"{root}references/forms.md",
            ]
            for file in entry["resources"]:
                (content,) = ask(gateway, "resources/read", uri=file["uri"], **said)["contents"]
                text = content["text"].encode()
                assert file["digest"] == f"sha256:{hashlib.sha256(text).hexdigest()}"
                assert file["size"] == len(text)
            assert ask(gateway, "skills/get", uri=entry["uri"], **said)["skill"] == entry
        own = ask(gateway, "skills/get", uri="skill://tags/SKILL.md", **said)["skill"]
        assert own["uri"] == "skill://greenroom/one/tags/SKILL.md", "what a server's instructions point to"
        both = ask(gateway, "skills/get", uri="skill://team/branches/SKILL.md", **said)
        assert (both["code"], "skill://greenroom/two/team/branches/SKILL.md" in both["message"]) == (
            -32602,
            True,
        )
        told = ask(gateway, "server/discover", **said) if said else ask(gateway, "initialize", **HELLO)
        assert told["capabilities"]["extensions"] == {EXTENSION: {}}
        assert gateway.end() == 0


def connect(gateway: Gateway, *servers: str, **said: Any) -> None:
    for server in servers:
        assert "content" in ask(gateway, "tools/call", name=f"{server}_echo", arguments={}, **said)


def test_a_skill_that_is_not_listed_is_got_from_its_server_alone(tmp_path: Path) -> None:
    hidden = skill("hidden", {})
    one = skilled(
        tmp_path,
        "one",
        "tags",
        unlisted_skills=hidden["skills"],
    )
    given = {"one": one, "two": lister(tmp_path, "two", **SERVER)}
    with serve(tmp_path, given, "--expose", "direct") as gateway:
        gateway.initialize()
        connect(gateway, *given)
        got = ask(gateway, "skills/get", uri="skill://greenroom/one/hidden/SKILL.md")["skill"]
        assert got["uri"] == got["resources"][0]["uri"] == "skill://greenroom/one/hidden/SKILL.md"
        for uri in (
            "skill://greenroom/one/none/SKILL.md",
            "skill://greenroom/two/tags/SKILL.md",
            "skill://greenroom/three/tags/SKILL.md",
        ):
            assert "message" in ask(gateway, "skills/get", uri=uri), uri
        assert ask(gateway, "skills/get", uri=7)["code"] == -32602
        assert gateway.end() == 0


def test_a_client_is_told_that_skills_came_and_of_none_where_there_are_none(tmp_path: Path) -> None:
    with serve(tmp_path, {"one": lister(tmp_path, "one", **SERVER)}, "--expose", "direct") as gateway:
        told = ask(gateway, "initialize", **HELLO)
        assert "extensions" not in told["capabilities"]
        connect(gateway, "one")
        assert ask(gateway, "skills/list")["skills"] == []
        assert gateway.end() == 0


def test_entries_that_are_not_whole_are_left_out_and_said(tmp_path: Path) -> None:
    (good,) = skill("tags", {})["skills"]
    huge = {**good, "uri": "skill://huge/tags/SKILL.md"}
    huge["resources"] = [
        {"uri": huge["uri"], "digest": good["resources"][0]["digest"], "size": 100 * 1024 * 1024}
    ]
    outside = {**good, "resources": [*good["resources"], {**good["resources"][0], "uri": "skill://other/a"}]}
    one = lister(tmp_path, "one", **SERVER, skills=[huge, outside, good], contents={})
    with serve(tmp_path, {"one": one}, "--expose", "direct") as gateway:
        gateway.initialize()
        connect(gateway, "one")
        assert [each["uri"] for each in ask(gateway, "skills/list")["skills"]] == [
            "skill://greenroom/one/tags/SKILL.md"
        ]
        assert gateway.end() == 0
    with serve(tmp_path, {"one": one}) as gateway:
        gateway.initialize()
        assert "16,777,216 bytes" in json.dumps(gateway.mcp(server="one"))
        assert gateway.end() == 0
