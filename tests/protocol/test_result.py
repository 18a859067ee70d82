"""Results as a program reads them: leniently, and nothing of what the server said is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.catalogue.namespace import Target
from greenroom.protocol.errors import ProtocolFault
from greenroom.protocol.result import Completion, PromptMessages, ResourceContents, ToolResult

TEXT = {"type": "text", "text": "one"}
EMPTY = {"type": "text", "text": ""}
TWO = {"type": "text", "text": "two"}
IMAGE = {"type": "image", "data": "QUJD", "mimeType": "image/png"}


@for_each(
    ("raw", "text"),
    [
        ({}, ""),
        ({"content": [TEXT, IMAGE, EMPTY, TWO, {"type": "text", "text": 5}]}, "one\n\ntwo"),
        ({"contents": [{"uri": "u:x", "text": "read"}]}, "read"),
        ({"content": [], "contents": [TEXT]}, ""),
        ({"content": None}, ""),
    ],
)
def test_a_tools_text_is_all_its_texts(raw: dict[str, Any], text: str) -> None:
    result = ToolResult(raw)
    assert result.text == text
    assert result.raw is raw
    given = raw.get("content", raw.get("contents"))
    assert result.content == (given or [])


@for_each(("said", "failed"), [(True, True), (False, False), (1, False), ("true", False), (None, False)])
def test_only_the_literal_true_says_that_a_tool_failed(said: Any, failed: bool) -> None:
    assert ToolResult({"isError": said}).is_error is failed
    assert ToolResult({}).is_error is False


@for_each("value", [0, "", [], {}, False, {"a": 1}])
def test_what_is_structured_is_as_it_was_sent(value: Any) -> None:
    assert ToolResult({"structuredContent": value}).structured == value
    assert ToolResult({}).structured is None


LONG = "\n".join(f"line {number}" for number in range(3_000))


def test_a_model_is_shown_fifty_kilobytes_and_two_thousand_lines_unless_told_otherwise() -> None:
    def shown(text: str, max_bytes: int | None = None, max_lines: int | None = None) -> str:
        [block] = ToolResult({"content": [{"type": "text", "text": text}]}).for_model(
            max_bytes=max_bytes, max_lines=max_lines
        )
        return block["text"]

    for text, is_cut in (
        ("x" * 51_200, False),
        ("x" * 51_201, True),
        ("\n" * 1_999, False),
        ("\n" * 2_000, True),
    ):
        assert ("truncated" in shown(text)) is is_cut
    assert shown(LONG, max_bytes=0, max_lines=0) == LONG
    assert shown(LONG, max_lines=0) == LONG
    assert "truncated" in shown("x" * 60_000, max_lines=0)
    assert "truncated" in shown(LONG, max_bytes=0)
    assert "truncated" in shown("1\n2\n3", max_lines=2)
    assert "truncated" in shown("abc", max_bytes=2)


def test_a_text_that_cannot_be_saved_is_cut_and_says_why(tmp_path: Path) -> None:
    def save(text: str) -> Path:
        raise OSError("the disk is full")

    result = ToolResult({"content": [{"type": "text", "text": LONG}]})
    [cut] = result.for_model(save=save)
    assert cut["text"].endswith("Full output could not be saved: the disk is full]")
    saved: list[str] = []
    [short] = ToolResult({"content": [TEXT]}).for_model(save=saved.append)
    assert (short, saved) == (TEXT, []), "what fits is not saved"
    [cut] = result.for_model(save=lambda text: tmp_path / "kept")
    assert f"Full text saved to: {tmp_path / 'kept'} " in cut["text"]


def test_what_is_read_is_its_contents() -> None:
    parts = [{"uri": "u:1", "text": "one"}, {"uri": "u:2", "blob": "QUJD"}, {"uri": "u:3", "text": ""}]
    read = ResourceContents({"contents": [*parts, "odd", None]})
    assert read.contents == [*parts, {"uri": "", "text": "odd"}, {"uri": "", "text": "null"}]
    assert read.text == "one\n\nodd\nnull"
    for wrong in (
        "said",
        {"said": 7},
        [["said"]],
        [{"uri": 7, "text": "said"}],
        [{"uri": "u:1", "text": {"said": 1}}],
    ):
        odd = ResourceContents({"contents": wrong})
        assert "said" in odd.text
        assert len(odd.to_mcp().contents) == 1
    assert (ResourceContents({}).text, ResourceContents({"contents": None}).contents) == ("", [])
    assert ResourceContents({"content": [{"type": "text", "text": "as a tool"}]}).text == "as a tool"
    assert len(ResourceContents({"contents": parts}).to_mcp().contents) == 3


def test_a_prompt_is_its_messages_and_what_it_is_for() -> None:
    said = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TWO}]
    prompt = PromptMessages({"messages": [*said, 5], "description": "greets"})
    assert prompt.messages == [*said, {"role": "user", "content": {"type": "text", "text": "5"}}]
    assert prompt.description == "greets"
    for wrong in (
        "said", {"role": "user", "content": "said"}, [{"role": "system", "content": {"type": "text", "text": "said"}}],
        [{"type": "text", "text": "said"}], [{"role": "user", "content": ["said"]}], [{"text": "said"}], [["said"]],
    ):  # fmt: skip
        odd = PromptMessages({"messages": wrong})
        assert "said" in odd.messages[0]["content"]["text"]
        assert len(odd.to_mcp().messages) == 1
    assert (PromptMessages({}).messages, PromptMessages({"description": 5}).description) == ([], "")
    assert [each.role for each in PromptMessages({"messages": said}).to_mcp().messages] == [
        "user",
        "assistant",
    ]


@for_each(
    "content",
    ["said", ["said"], {"type": "text", "text": "said"}, [{"type": "text", "text": "said"}, 7, None]],
)
def test_content_of_another_form_is_shown_and_raises_nothing(content: Any) -> None:
    result = ToolResult({"content": content})
    assert result.text.startswith("said")
    assert "said" in repr(result)
    assert result.images == []


def test_a_completion_is_its_values_their_number_and_whether_there_are_more() -> None:
    full = Completion({"completion": {"values": ["a", 5, "", "b"], "total": 0, "hasMore": True}})
    assert (full.values, full.total, full.has_more) == (["a", "", "b"], 0, True)
    for odd in ({}, {"completion": []}, {"completion": {"values": "ab", "total": "5", "hasMore": 1}}):
        found = Completion(odd)
        assert (found.values, found.total, found.has_more) == ([], None, False)


def test_the_sdks_result_has_what_the_server_said() -> None:
    result = ToolResult({"content": [TEXT], "isError": True, "structuredContent": {"a": 1}}).to_mcp()
    assert result.model_dump(by_alias=True, exclude_none=True)["structuredContent"] == {"a": 1}
    assert result.model_dump(by_alias=True)["isError"] is True


def test_of_a_large_result_only_what_is_asked_for_is_decoded() -> None:
    """It is given as bytes, and half a character in one member is no reason to read another otherwise."""
    raw = rb'{"content":[{"type":"text","text":"one"}],"structuredContent":{"x":"\ud83d"},"isError":true}'
    result = ToolResult(raw)
    assert (result.text, result.is_error) == ("one", True)
    assert result.structured == result.raw["structuredContent"]
    assert set(result.raw) == {"content", "structuredContent", "isError"}


@for_each("raw", [b"[]", b"{", b"\xff", b""])
def test_a_large_result_that_is_none_is_told_when_it_is_read(raw: bytes) -> None:
    target = Target("a_echo", "a", "tool", "echo", {"name": "echo"}, "", None)
    with pytest.raises(ProtocolFault, match='"a" answered with something that is not a result') as told:
        _ = ToolResult(raw, target).text
    assert (told.value.server, told.value.tool, told.value.reach) == ("a", "a_echo", "answered")


def test_what_is_printed_of_a_result_is_the_answer() -> None:
    said = repr(ToolResult({"content": [{"type": "text", "text": "noon"}], "isError": True}))
    assert said == "<ToolResult text='noon', is_error=True>"
    assert (
        repr(ToolResult({"content": [], "structuredContent": {"a": 1}})) == "<ToolResult structured={'a': 1}>"
    )
    long = repr(ToolResult({"content": [{"type": "text", "text": "x" * 10_000}]}))
    assert "xxx" in long
    assert len(long) < 300
    assert repr(ToolResult({"content": [{"type": "image", "data": "AA=="}]})).startswith(
        "<ToolResult content=[{"
    )
