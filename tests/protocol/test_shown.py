"""What a model is shown of a result: what a failed call expects, the text of a resource, and no more than fits."""

from __future__ import annotations

from typing import Any

from tests.support.rows import for_each

from greenroom.catalogue.namespace import Kind, Target
from greenroom.catalogue.overrides import ToolOverride
from greenroom.protocol.content import Stats, expected_parameters, shown

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OTHERS = '{\n  "contents": [\n    {\n      "uri": "u:x",\n      "text": "read"\n    }\n  ]\n}'
EXPECTED = "\n\nExpected parameters:\nn (integer) *required*"
IMAGE = {"type": "image", "data": "QUJD", "mimeType": "image/png"}


def target(kind: Kind = "tool", override: ToolOverride | None = None, schema: Any = SCHEMA) -> Target:
    return Target("s_do", "s", kind, "do", {"name": "do"}, "", schema, override)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def seen(result: dict[str, Any], of: Target | None, max_bytes: int = 51_200, max_lines: int = 2_000) -> Any:
    found = shown(result, of, max_bytes=max_bytes, max_lines=max_lines)
    return found.blocks if found.spill is None else found.cut(path="/f").blocks


@for_each(
    ("content", "shown_first"),
    [
        ([text("too many")], "Error: too many" + EXPECTED),
        ([text("Error: too many")], "Error: too many" + EXPECTED),
        ([text(" one "), text("two\n")], "Error: one \ntwo" + EXPECTED),
        ([], "Error: Tool execution failed" + EXPECTED),
        ([text("  ")], "Error: Tool execution failed" + EXPECTED),
        ([text("no.\n\nExpected parameters:\nx")], "Error: no.\n\nExpected parameters:\nx"),
    ],
)
def test_a_failure_is_told_once_with_what_the_tool_expects(content: list[Any], shown_first: str) -> None:
    result = {"content": [*content, IMAGE], "isError": True}
    assert seen(result, target()) == [text(shown_first), IMAGE]
    assert seen({**result, "isError": False}, target())[-1] == IMAGE
    assert seen({**result, "isError": 1}, target()) == [*content, IMAGE]
    without = seen(result, None)[0]["text"]
    assert without == shown_first.removesuffix(EXPECTED)
    assert seen({"content": content, "isError": True}, target()) == [text(shown_first)]


def test_a_failure_is_told_in_the_names_that_the_caller_knows() -> None:
    override = ToolOverride.of({"rename": "act", "params": {"n": {"rename": "count"}}})
    result = {"content": [text("do: n is missing")], "isError": True}
    assert seen(result, target(override=override))[0]["text"].startswith("Error: act: count is missing\n")
    assert seen({**result, "isError": False}, target(override=override)) == [text("do: n is missing")]


def test_what_a_resource_expects_is_nothing_and_a_schema_shows_no_hidden_characters() -> None:
    assert expected_parameters(target("resource")) == "\n\nExpected parameters:\n(no parameters)"
    odd = {"type": "object", "properties": {"a\u200bb": {"type": "string", "description": "x\u202ey"}}}
    assert expected_parameters(target(schema=odd)) == "\n\nExpected parameters:\nab (string) - xy"
    assert expected_parameters(target(schema=None)) == "\n\nExpected parameters:\n(no schema)"
    assert expected_parameters(None) == ""
    assert expected_parameters(target(), "x\n\nExpected parameters:\ny") == ""
    assert expected_parameters(target(), "Expected parameters:") == EXPECTED


@for_each(
    ("result", "of", "expected"),
    [
        ({"contents": [{"uri": "u:x", "text": "read"}]}, None, ["read"]),
        ({"contents": [{"uri": "u:x", "text": "read"}]}, target("resource"), ["read"]),
        ({"contents": [{"uri": "u:x", "text": "read"}]}, target(), [OTHERS]),
        ({"contents": [{"uri": "u:x", "text": "read"}], "content": [text("said")]}, None, ["said"]),
        ({"content": [text("said")]}, target("resource"), ["(empty resource)"]),
        ({"contents": [{"uri": "u:x"}], "structuredContent": {"a": 1}}, None, ['{"uri": "u:x"}']),
        ({"contents": [{"blob": "QQ==", "mimeType": "a/b"}]}, None, ["[Binary data: a/b]"]),
        ({"contents": []}, None, ["(empty resource)"]),
        ({}, None, ["(empty result)"]),
        ({"content": [], "structuredContent": []}, None, ["[]"]),
        ({"content": [text("x")], "structuredContent": []}, None, ["x"]),
        ({"content": [text("x")], "structuredContent": 0}, None, ["x", "0"]),
        (
            {"content": [text("x")], "structuredContent": {"a": [1]}},
            None,
            ["x", '{\n  "a": [\n    1\n  ]\n}'],
        ),
    ],
)
def test_a_resource_is_told_by_its_target_or_else_by_its_shape(
    result: dict[str, Any], of: Target | None, expected: list[str]
) -> None:
    assert [block["text"] for block in seen(result, of)] == expected


@for_each(
    ("said", "max_bytes", "max_lines", "is_cut"),
    [
        ("x" * 100, 100, 10, False),
        ("x" * 101, 100, 10, True),
        ("é" * 50, 100, 10, False),
        ("é" * 51, 100, 10, True),
        ("x\n" * 9, 100, 10, False),
        ("x\n" * 10, 100, 10, True),
        ("x" * 300, 0, 10, False),
        ("x\n" * 100, 1_000, 0, False),
        ("x\n" * 300, 100, 0, True),
        ("x\n" * 3_000, 1_000, 0, True),
        ("x\n" * 300, 0, 10, True),
        ("\ud800" * 101, 100, 10, True),
    ],
)
def test_what_is_over_a_bound_is_cut_with_its_images_kept_and_its_size_told(
    said: str, max_bytes: int, max_lines: int, is_cut: bool
) -> None:
    blocks = seen({"content": [IMAGE, text(said)]}, None, max_bytes, max_lines)
    if not is_cut:
        assert blocks == [IMAGE, text(said)]
        return
    [cut, image] = blocks
    assert image == IMAGE
    size = len(said.encode(errors="replace"))
    lines = said.count("\n") + 1
    assert (
        f"[MCP text output truncated: original {lines} line{'s' * (lines > 1)} / {size / 1024:.1f} KiB. "
        in cut["text"]
    )
    assert "Full text saved to: /f — use read with offset/limit or grep to inspect.]" in cut["text"]


def test_what_was_cut_says_how_much_is_left_and_where_the_rest_begins() -> None:
    said = "é" * 300
    whole = shown({"content": [text(said), IMAGE]}, None, max_bytes=400, max_lines=10)
    assert (whole.spill, whole.stats) == (said, Stats(True, 600, 1, 600, 1, 1))
    asked: list[int] = []

    def more(offset: int) -> str:
        asked.append(offset)
        return f"more({offset})"

    cut = whole.cut(path="/f", more=more)
    head = cut.blocks[0]["text"].partition("\n\n")[0]
    assert said.startswith(head)
    assert asked[-1] == len(head.encode())
    assert f" Next part: more({asked[-1]}).]" in cut.blocks[0]["text"]
    assert cut.spill is None
    assert cut.stats.returned_bytes == len(cut.blocks[0]["text"].encode()) <= 400
    assert cut.stats.returned_lines == 3
    assert (cut.stats.original_bytes, cut.stats.truncated, cut.stats.images) == (600, True, 1)
    failed = whole.cut(error="no disk").blocks[0]["text"]
    assert failed.endswith("Full output could not be saved: no disk]")
    plain = whole.cut().blocks[0]["text"]
    assert plain.endswith("[MCP text output truncated: original 1 line / 0.6 KiB.]")
