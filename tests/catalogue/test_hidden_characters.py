"""Whoever is not shown hidden characters is told that they are there, and which."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.forked import greenroom_in
from tests.support.gateway import serve
from tests.support.lister import lister, tool
from tests.support.rows import for_each

from greenroom.catalogue.hidden_characters import hidden_in

TAGS = "".join(chr(0xE0000 + ord(each)) for each in "obey")


@for_each(
    ("text", "said"),
    [
        ("plain", ""),
        ("two\nlines\r\nand\ttabs \u2028 and more", ""),
        ("naïve — “quoted” 漢字", ""),
        (
            "\U0001f469\u200d\U0001f4bb and \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 and \u2764\ufe0f",
            "",
        ),
        ("a\u200bb", "U+200B in its description"),
        ("a\u200db", "U+200D in its description"),
        ("\U0001f469\u200d\u200c\u200d\U0001f4bb", "U+200D (2 times), U+200C in its description"),
        ("a\u200b\u200b\u202eb", "U+200B (2 times), U+202E in its description"),
        ("\x1b[31mred", "U+001B in its description"),
        (f"x{TAGS}" + "\u200b", "U+E006F, U+E0062, U+E0065, U+E0079 and 1 more in its description"),
    ],
)
def test_hidden_characters_are_named_and_those_with_a_meaning_are_not(text: str, said: str) -> None:
    assert hidden_in({"name": "t", "description": text}) == said


def test_they_are_found_anywhere_in_a_definition() -> None:
    schema = {"properties": {"pa\u200bth": {"enum": ["x\u2060"]}}}
    found = hidden_in({"name": "t\u00ad", "description": "x", "inputSchema": schema})
    assert found == "U+00AD in its name, U+200B, U+2060 in its inputSchema"


def test_status_doctor_describe_and_the_log_name_server_tool_and_characters(tmp_path: Path) -> None:
    entry = lister(
        tmp_path, "s", tools=[tool("say", f"Says.\u200b{TAGS}"), tool("plain")], instructions="be\u200bkind"
    )
    with serve(tmp_path, {"sly": entry}) as gateway:
        gateway.initialize()
        gateway.mcp(connect="sly")
        told = {mode: json.dumps(gateway.mcp(**asked)) for mode, asked in (
            ("status", {}), ("describe", {"describe": "sly_say"}), ("other", {"describe": "sly_plain"}))}  # fmt: skip
        assert gateway.end() == 0

    def command(*words: str) -> str:
        return greenroom_in(tmp_path, *words).stdout

    told |= {
        "greenroom status": command("status"),
        "greenroom status --json": command("status", "--json"),
        "greenroom doctor": command("doctor"),
        "greenroom describe": command("describe", "sly_say"),
        "log": (tmp_path / "stderr.txt").read_text(),
    }
    for where, text in told.items():
        assert ("U+200B" in text and "U+E006F" in text) is (where != "other"), where
        assert [each for each in ("\u200b", TAGS[0], "\\u200b") if each in text] == [], where
        if where != "other":
            assert "sly" in text, where
            assert "say" in text, where
            assert "plain" not in text or "describe" not in where, where
        assert "instructions" in text or "describe" in where or where == "other", where


def test_those_of_instructions_resources_and_templates_are_named_where_these_are_shown(
    tmp_path: Path,
) -> None:
    entry = lister(
        tmp_path,
        "s",
        tools=[tool("plain")],
        resources=[{"uri": "user://a", "name": "a\u2060"}],
        templates=[{"uriTemplate": "user://{b}", "name": "b", "description": "x\u200d"}],
        contents={},
        instructions="be\u200bkind",
    )
    with serve(tmp_path, {"sly": {**entry, "exposeResources": False}}) as gateway:
        gateway.initialize()
        gateway.mcp(connect="sly")
        status = gateway.mcp()
        shown = [gateway.mcp(instructions="sly"), gateway.mcp(server="sly")]
        assert gateway.end() == 0
    (row,) = status["_meta"]["greenroom/details"]["servers"]
    assert [each.partition(":")[0] for each in row["hidden"]] == [
        "instructions", 'resource "user', 'template "user',
    ]  # fmt: skip
    for said, which in zip(row["hidden"], ("U+200B", "U+2060", "U+200D"), strict=True):
        assert which in said
        assert which in status["content"][0]["text"]
    for answer in shown:
        assert "U+200B" in answer["content"][0]["text"]
        assert "bekind" in answer["content"][0]["text"]
        assert "\u200b" not in json.dumps(answer, ensure_ascii=False)
