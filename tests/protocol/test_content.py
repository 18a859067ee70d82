"""Content: every kind of block said, nothing dropped, nothing too long."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.support.rows import for_each

from greenroom.protocol.content import guard, text_of, to_blocks, to_resource_blocks


def texts(*blocks: Any, **more: Any) -> list[Any]:
    return [block.get("text") for block in to_blocks({"content": list(blocks), **more})]


@for_each(
    ("block", "text"),
    [
        ({"type": "audio", "data": "x", "mimeType": "audio/wav"}, "[Audio content: audio/wav]"),
        ({"type": "audio"}, "[Audio content: audio/*]"),
        ({"type": "resource", "resource": {"uri": "f:a", "text": "hi"}}, "[Resource: f:a]\nhi"),
        (
            {"type": "resource", "resource": {"uri": "f:a", "blob": "AA==", "mimeType": "a/b"}},
            "[Resource: f:a]\n[Binary data: a/b]",
        ),
        ({"type": "resource", "resource": {"uri": "f:a"}}, '{"uri": "f:a"}'),
        ({"type": "resource"}, '{"type": "resource"}'),
        ({"type": "resource_link", "uri": "f:a", "name": "A"}, "[Resource Link: A]\nURI: f:a"),
        ({"type": "resource_link", "uri": "f:a"}, "[Resource Link: f:a]\nURI: f:a"),
        ({"type": "hologram", "é": 1}, '{"type": "hologram", "é": 1}'),
        ({"type": "text", "text": 5}, '{"type": "text", "text": 5}'),
        ({"type": "image"}, '{"type": "image"}'),
        ("junk", "junk"),
        (None, "null"),
    ],
)
def test_blocks_become_text(block: Any, text: str) -> None:
    assert texts(block) == [text]


def test_text_and_images_are_the_servers_own() -> None:
    text = {"type": "text", "text": "hi", "annotations": {"audience": ["user"]}}
    image = {"type": "image", "data": "AA==", "mimeType": "image/webp", "_meta": {}}
    blocks = to_blocks({"content": [text, image]})

    assert blocks[0] is text
    assert blocks[1] is image


def test_an_image_without_a_type_is_a_png() -> None:
    (image,) = to_blocks({"content": [{"type": "image", "data": "AA=="}]})

    assert image == {"type": "image", "data": "AA==", "mimeType": "image/png"}


def test_structured_content_is_shown_unless_the_text_says_it() -> None:
    assert texts(structuredContent={"a": [1]}) == ['{\n  "a": [\n    1\n  ]\n}']
    assert texts({"type": "text", "text": "said"}, structuredContent={"a": 1}) == ["said", '{\n  "a": 1\n}']
    assert texts({"type": "text", "text": "said"}, structuredContent={}) == ["said"]
    assert texts(structuredContent={}) == ["{}"]
    assert texts() == ["(empty result)"]


@for_each(
    ("result", "said"),
    [
        ({"content": "hello"}, "hello"),
        ({"content": {"type": "text", "text": "hello"}}, "hello"),
        ({"content": ["hello"]}, "hello"),
        ({"content": {"hello": 1}}, '{"hello": 1}'),
        ({"content": 5}, "5"),
        ({"output": "hello", "_meta": {}}, '{\n  "output": "hello"\n}'),
        ({"content": None}, "(empty result)"),
    ],
)
def test_the_words_of_a_malformed_result_are_shown(result: dict[str, Any], said: str) -> None:
    assert to_blocks(result) == [{"type": "text", "text": said}]


@for_each(
    "wrong",
    [
        {"annotations": None},
        {"annotations": "x"},
        {"annotations": {"audience": "user"}},
        {"annotations": {"audience": ["everybody"]}},
        {"annotations": {"priority": 2}},
        {"annotations": {"priority": "high"}},
        {"annotations": {"priority": True}},
        {"annotations": {"lastModified": 5}},
        {"_meta": "x"},
    ],
)
@for_each("block", [{"type": "text", "text": "x"}, {"type": "image", "data": "AA==", "mimeType": "a/b"}])
def test_members_for_which_clients_refuse_a_result_are_left_out(
    wrong: dict[str, Any], block: dict[str, Any]
) -> None:
    right = {"annotations": {"audience": ["user"], "priority": 0.5}, "_meta": {"a": 1}, "other": 1}
    assert to_blocks({"content": [{**block, **right}]}) == [{**block, **right}]
    (shown,) = to_blocks({"content": [{**block, **right, **wrong}]})
    assert shown == {key: value for key, value in {**block, **right}.items() if key not in wrong}


@for_each(
    ("value", "said"),
    [
        ({"a": 1, "b": [2]}, ['{"b": [2], "a": 1.0}']),
        ({"a": 1}, ['Here you are:\n```json\n{"a": 1}\n```']),
        ({"result": "noon"}, ["noon"]),
        ({"result": "12"}, ["12"]),
        ({"result": 12}, ["12"]),
        ({"result": [1, "x", {"a": 1}]}, ["1", "x", '{"a": 1}']),
        ({"result": ["1", "2"]}, ["1", "2"]),
        ({"result": ["1", "2"]}, ['["1", "2"]']),
        ({"a": 1}, ["first this", '{"a": 1}']),
    ],
)
def test_what_the_text_says_already_is_not_said_twice(value: Any, said: list[str]) -> None:
    assert texts(*({"type": "text", "text": text} for text in said), structuredContent=value) == said


@for_each("length", [524_287, 524_300, 3_000_000])
@for_each("kind", [dict, Raw], ids=["decoded", "as JSON"])
def test_a_text_of_any_length_is_not_said_twice(length: int, kind: Any) -> None:
    text = "z" * length
    for said, value in ((text, {"result": text}), (json.dumps({"a": text}), {"a": text})):
        structured = value if kind is dict else Raw(json.dumps(value).encode())
        assert texts({"type": "text", "text": said}, structuredContent=structured) == [said]


@for_each("said", ['{"a": 2}', "a", "{", '{"a": 1, "b": 2}', "[" * 2_000, '{"a":' * 2_000, " " * (1 << 20)])
def test_what_the_text_does_not_say_is_shown(said: str) -> None:
    assert texts({"type": "text", "text": said}, structuredContent={"a": 1}) == [said, '{\n  "a": 1\n}']


def test_a_long_structured_answer_is_not_laid_out() -> None:
    value = {"a": ["x" * 60] * 1_000}
    assert texts(structuredContent=value) == [json.dumps(value)]


def test_a_read_resource_is_its_text() -> None:
    contents = [{"uri": "f:a", "text": "hi"}, {"uri": "f:b", "blob": "AA=="}, {"uri": "f:c"}]

    assert text_of(to_resource_blocks({"contents": contents})) == (
        'hi\n[Binary data: application/octet-stream]\n{"uri": "f:c"}'
    )
    assert text_of(to_resource_blocks({})) == "(empty resource)"


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "data", "resource", "uri", "blob", "mimeType", "name"]),
            inner | st.sampled_from(["text", "image", "audio", "resource", "resource_link"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4), JSON)
def test_any_result_becomes_text_and_images(content: list[Any], structured: Any) -> None:
    blocks = to_blocks({"content": content, "structuredContent": structured})
    read = to_resource_blocks({"contents": content})

    assert len(read) == max(1, len(content))
    assert len(read) <= len(blocks) <= len(read) + (structured is not None)
    assert all(isinstance(b["text"] if b["type"] == "text" else b["data"], str) for b in blocks + read)
    assert {block["type"] for block in blocks} <= {"text", "image"}


# ---- the guard ----


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


IMAGE = {"type": "image", "data": "AA==", "mimeType": "image/png"}


NOTICE = (
    "[MCP text output truncated: original 3000 lines / 28.2 KiB. Full text saved to: /tmp/out.txt — "
    "use read with offset/limit or grep to inspect.]"
)


def test_what_fits_is_left_alone() -> None:
    blocks = [text_block("a" * 51_199), IMAGE, text_block("")]
    guarded = guard(blocks)

    assert guarded.spill is None
    assert guarded.blocks == blocks
    assert (guarded.stats.truncated, guarded.stats.original_bytes, guarded.stats.images) == (False, 51_200, 1)


def test_what_is_too_long_is_cut_and_says_where_the_rest_is() -> None:
    full = "\n".join(f"line {n}" for n in range(3000))
    guarded = guard([text_block(full), IMAGE])
    assert guarded.spill == full
    text, image = guarded.cut(path="/tmp/out.txt").blocks

    assert image is IMAGE
    lines = text["text"].split("\n")
    assert len(lines) == 2000
    assert lines[:2] == ["line 0", "line 1"]
    assert lines[-3:] == [
        "line 1997",
        "",
        NOTICE,
    ]


def test_it_says_so_when_the_rest_could_not_be_saved() -> None:
    guarded = guard([text_block("a" * 2048)], max_bytes=1024)
    (block,) = guarded.cut(error="disk full").blocks

    notice = "original 1 line / 2.0 KiB. Full output could not be saved: disk full]"
    assert block["text"].endswith(f"\n\n[MCP text output truncated: {notice}")
    assert len(block["text"]) == 1024


def test_bounds_can_be_turned_off() -> None:
    blocks = [text_block("a\n" * 5000)]

    assert guard(blocks, max_bytes=0, max_lines=0).spill is None
    (cut,) = guard(blocks, max_bytes=0, max_lines=10).cut(path="p").blocks
    assert cut["text"].startswith("a\n" * 7)
    assert guard(blocks, max_bytes=10, max_lines=0).spill is not None


def test_blocks_count_together() -> None:
    guarded = guard([text_block("a" * 600), IMAGE, text_block("b" * 600)], max_bytes=1000)

    assert guarded.spill == "a" * 600 + "\n" + "b" * 600


@given(
    st.lists(st.text(alphabet="aé😀\n\ud800", max_size=40), min_size=1, max_size=5),
    st.integers(0, 400),
    st.integers(0, 12),
)
def test_what_comes_back_is_within_bounds_and_a_head_of_what_there_was(
    parts: list[str], max_bytes: int, max_lines: int
) -> None:
    guarded = guard([text_block(part) for part in parts], max_bytes=max_bytes, max_lines=max_lines)
    if guarded.spill is None:
        assert guarded.stats.truncated is False
        return
    cut = guarded.cut(path="p")
    (block,) = cut.blocks
    head, _, notice = block["text"].rpartition("\n\n")

    assert guarded.spill.startswith(head)
    assert notice.startswith("[MCP text output truncated")
    size = len(block["text"].encode())
    assert (size, block["text"].count("\n") + 1) == (cut.stats.returned_bytes, cut.stats.returned_lines)
    assert not head or not max_bytes or size <= max_bytes
    assert not head or not max_lines or cut.stats.returned_lines <= max_lines


@for_each("over", [-1, 0, 1])
@for_each(("bound", "has"), [("max_bytes", 17), ("max_lines", 3)])
def test_what_just_fits_is_not_cut(bound: str, has: int, over: int) -> None:
    said: dict[str, int] = {"max_bytes": 0, "max_lines": 0, bound: has - over}
    blocks: list[Any] = [{"type": "text", "text": text} for text in ("\u00e4bcd", "12345\n12345")]
    guarded = guard(blocks, **said)
    assert guarded.stats.truncated is (over > 0)
    assert (guarded.spill is None) is (over <= 0)
    assert (guarded.stats.original_bytes, guarded.stats.original_lines) == (17, 3)
