"""What does not fit an answer: pages of a long text, binary content in files, images, and `greenroom outputs`."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.support.door_rooms import KnownRoom
from tests.support.gateway import serve
from tests.support.lister import lister, tool
from tests.support.rows import for_each

from greenroom.gateway.exposures import result_texts
from greenroom.gateway.exposures.output_files import Spill, id_of
from greenroom.gateway.exposures.result_texts import (
    REST_LIMIT,
    OutputRules,
    has_binaries,
    may_have_binaries,
    outcome_of,
    outcome_of_bytes,
    without_binaries,
)
from greenroom.gateway.exposures.tool_definition import FOR_MODELS
from greenroom.protocol.bounds import DECODED_ESCAPES, LARGE_MESSAGE
from greenroom.protocol.content import MAX_BYTES, MAX_LINES

MOST = 4 * 1024 * 1024


def goes_to_files(result: Mapping[str, Any], max_image: int) -> bool:
    found = has_binaries(result, max_image)
    raw = json.dumps(result).encode()
    spelled = raw.replace(b'"data"', rb'"\u0064ata"').replace(b'"blob"', rb'"bl\u006fb"')
    assert json.loads(spelled) == result
    assert not found or (may_have_binaries(raw) and may_have_binaries(spelled))
    return found


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ---- pages ---------------------------------------------------------------------------------------------------------


@given(
    text=st.text(st.sampled_from("aé€😀\n"), max_size=60),
    most=st.integers(4, 20),
    lines=st.integers(1, 5),
)
def test_the_pages_of_a_text_are_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, most: int, lines: int
) -> None:
    spill = Spill(tmp_path_factory.mktemp("out"))
    output, said, at = id_of(spill.write(text)), "", 0
    while True:
        page = spill.page(output, at, most, lines)
        assert page is not None
        assert (page.start, page.size) == (at, len(text.encode()))
        assert len(page.text.encode()) == page.end - page.start <= most
        assert page.text.count("\n") <= lines
        said, at = said + page.text, page.end
        if page.end == page.size:
            break
        assert page.text
    assert said == text


KEPT_ELSEWHERE = [
    f"{folder}/output-{'0' * 16}" for folder in ("x", "x/../../secrets", "x\0", "x\ud83d", "x" * 5000)
]


@pytest.mark.parametrize(
    "output", ["", "0" * 16, "../secret", "0" * 15 + "/", "*" * 16, "x\0y", "0" * 200, *KEPT_ELSEWHERE]
)
def test_nothing_but_a_kept_text_has_pages(tmp_path: Path, output: str) -> None:
    for folder in ("secrets", "out", "out/output-x"):
        (tmp_path / folder).mkdir(mode=0o700)
    for folder in (".", "secrets", "out/output-x"):
        for name in ("secret.txt", f"output-{'0' * 16}.txt"):
            (tmp_path / folder / name).write_text("secret")

    result = KnownRoom().result_of({"output": output, "offset": 1}, spill=Spill(tmp_path / "out"))
    text = result["content"][0]["text"]
    assert "secret\n" not in text
    assert "of 6" not in text
    if output:
        assert result["_meta"]["greenroom/details"]["error"] == "output_not_found"
        assert "Call the tool again" in text


def test_a_link_in_place_of_a_kept_text_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    spill = Spill(tmp_path / "out")
    kept = spill.write("kept")
    kept.unlink()
    kept.symlink_to(secret)
    with pytest.raises(OSError, match="link"):
        spill.page(id_of(kept), 0, 10, 10)


def test_a_model_reads_a_long_text_to_its_end_without_access_to_files(tmp_path: Path) -> None:
    long = "".join(f"{number} is told at length ü\n" for number in range(9_000))
    given = {"a": lister(tmp_path, "a", tools=[tool("t", long)])}
    with serve(tmp_path, given) as gateway:
        gateway.initialize()
        gateway.mcp(connect="a")
        result = gateway.mcp(describe="a_t")
        details = result["_meta"]["greenroom/details"]["outputGuard"]
        whole = Path(details["fullOutputPath"]).read_text(encoding="utf-8")
        head, _, notice = result["content"][0]["text"].rpartition("\n\n[")
        assert f'Next part: mcp({{ output: "{details["output"]}", offset: {len(head.encode())} }}).' in notice
        said, at, where = head, len(head.encode()), ""
        while at < len(whole.encode()):
            result = gateway.mcp(output=details["output"], offset=at)
            (block,) = result["content"]
            assert len(block["text"].encode()) <= 51_200
            text, _, where = block["text"].rpartition("\n\n[bytes ")
            page = result["_meta"]["greenroom/details"]
            assert page["start"] == at
            said, at = said + text, page["end"]
        assert said == whole
        assert where.endswith("This is the end.]")


# ---- binary content ------------------------------------------------------------------------------------------------


def test_binary_content_goes_to_files_with_the_right_suffix(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    room = KnownRoom()
    room.answer = {
        "content": [
            {"type": "text", "text": "before"},
            {"type": "audio", "data": encoded(b"sound"), "mimeType": "audio/mpeg"},
            {
                "type": "resource",
                "resource": {"uri": "f:a", "blob": encoded(data), "mimeType": "application/pdf"},
            },
            {"type": "image", "data": "x", "mimeType": "image/png"},
            {"type": "audio", "data": "not base64 é", "mimeType": "audio/wav"},
            {
                "type": "resource",
                "resource": {"uri": "f:b", "blob": encoded(b"x"), "mimeType": "../../etc/x"},
            },
        ]
    }

    content = room.result_of({"tool": "clock_now"}, spill=Spill(tmp_path / "out"))["content"]
    kept = {path.suffix: path for path in (tmp_path / "out").iterdir()}
    assert {suffix: path.read_bytes() for suffix, path in kept.items()} == {
        ".mp3": b"sound",
        ".pdf": data,
        ".bin": b"x",
    }
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept.values())
    assert content == [
        {"type": "text", "text": "before"},
        {"type": "text", "text": f"[Audio content: audio/mpeg]\nBinary content saved to {kept['.mp3']}"},
        {
            "type": "text",
            "text": f"[Resource: f:a]\nBinary content saved to {kept['.pdf']}\nMIME type: application/pdf",
        },
        {"type": "image", "data": "x", "mimeType": "image/png"},
        {
            "type": "text",
            "text": "[Audio content: audio/wav]\n"
            "Binary content could not be saved: the server's data is not base64",
        },
        {
            "type": "text",
            "text": f"[Resource: f:b]\nBinary content saved to {kept['.bin']}\nMIME type: ../../etc/x",
        },
    ]


def test_a_read_resource_that_is_binary_is_kept_too(tmp_path: Path) -> None:
    result = {
        "contents": [{"uri": "f:a", "text": "hi"}, {"uri": "f:b", "blob": encoded(b"x"), "mimeType": "a/b"}]
    }
    assert goes_to_files(result, MOST)
    changed = without_binaries(result, Spill(tmp_path), MOST)
    (kept,) = tmp_path.iterdir()
    assert changed["contents"] == [
        {"uri": "f:a", "text": "hi"},
        {"uri": "f:b", "text": f"Binary content saved to {kept}\nMIME type: a/b"},
    ]


def test_binary_content_that_says_little_of_itself_is_kept_too(tmp_path: Path) -> None:
    blocks = [
        {"type": "audio", "data": encoded(b"x"), "mimeType": ""},
        {"type": "resource", "resource": {"blob": encoded(b"x"), "mimeType": 7}},
    ]
    audio, resource = without_binaries({"content": blocks}, Spill(tmp_path), MOST)["content"]
    assert audio["text"].startswith("[Audio content: audio/wav]\nBinary content saved to ")
    assert resource["text"].startswith("[Resource: ]\nBinary content saved to ")
    assert resource["text"].endswith("MIME type: application/octet-stream")


def test_binary_content_that_cannot_be_kept_says_why(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the directory should be")
    result = {"content": [{"type": "audio", "data": encoded(b"x")}]}
    (block,) = without_binaries(result, Spill(tmp_path / "out"), MOST)["content"]
    assert block["text"].startswith("[Audio content: audio/wav]\nBinary content could not be saved: ")


@for_each(
    "content",
    [[], [{"type": "text", "text": "x"}], [{"type": "image", "data": "x"}], [3, None], "text", [{"blob": 3}]],
)
def test_other_results_are_left_as_they_are(content: Any) -> None:
    assert not goes_to_files({"content": content}, 1)


# ---- images --------------------------------------------------------------------------------------------------------


def picture(mode: str, side: int) -> str:
    into = BytesIO()
    Image.frombytes("RGB", (side, side // 2), os.urandom(side * (side // 2) * 3)).convert(mode).save(
        into, "PNG"
    )
    return encoded(into.getvalue())


@pytest.mark.parametrize(
    ("mode", "mime"), [("RGB", "image/jpeg"), ("P", "image/png"), ("LA", "image/png"), ("L", "image/jpeg")]
)
def test_an_image_over_the_bound_is_scaled_down(tmp_path: Path, mode: str, mime: str) -> None:
    data = picture(mode, 1_000)
    block = {"type": "image", "data": data, "mimeType": "image/png", "_meta": {"a": 1}}
    (shown,) = without_binaries({"content": [block]}, Spill(tmp_path), len(data) - 1)["content"]
    assert len(shown["data"]) < len(data)
    assert (shown["type"], shown["mimeType"], shown["_meta"]) == ("image", mime, {"a": 1})
    with Image.open(BytesIO(base64.b64decode(shown["data"]))) as image:
        assert (image.width, image.height) in {(1_000, 500), (512, 256)}
    assert list(tmp_path.iterdir()) == []
    assert not goes_to_files({"content": [block]}, len(data)), "at the bound it passes"
    assert not goes_to_files({"content": [block]}, 0), "and without one"


def test_a_mime_type_with_parameters_has_its_suffix(tmp_path: Path) -> None:
    assert Spill(tmp_path).write_base64("AA==", "Image/PNG; a=b").suffix == ".png"


@pytest.mark.parametrize("why", ["no Pillow", "no image", "still too large", "a bomb"])
def test_an_image_that_cannot_be_scaled_is_kept_as_a_file(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no Pillow":
        monkeypatch.setitem(sys.modules, "PIL.Image", None)
    data, most = picture("RGB", 200), 1_000
    if why == "no image":
        data = encoded(b"no image" * 200)
    if why == "a bomb":  # few bytes that say they are very many pixels
        into = BytesIO()
        Image.new("1", (8_000, 7_000)).save(into, "PNG")  # fewer than Pillow itself refuses
        data = encoded(into.getvalue())
    block = {"type": "image", "data": data, "mimeType": "image/png"}
    (shown,) = without_binaries({"content": [block]}, Spill(tmp_path), most)["content"]
    (kept,) = tmp_path.iterdir()
    assert kept.suffix == ".png"
    assert kept.read_bytes() == base64.b64decode(data)
    assert shown["text"] == (
        f"[Image of {len(data):,} characters of base64, too large to show: image/png]\n"
        f"Binary content saved to {kept}"
    )


# ---- retention and the command ---------------------------------------------------------------------------------------


def _age(file: Path, seconds: float) -> None:
    then = os.stat(file).st_mtime - seconds
    os.utime(file, (then, then))


def test_details_that_do_not_fit_are_kept_unless_they_are_too_large_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {"content": [], "structuredContent": {"x": "y" * 20_000}}
    kept = outcome_of("a", None, result, max_bytes=0, max_lines=0)
    (path,) = (
        Path(kept.saved(Spill(tmp_path / "out")).details["mcpResult"][where]) for where in ("savedTo",)
    )
    assert json.loads(path.read_text()) == {"structuredContent": result["structuredContent"]}
    monkeypatch.setattr("greenroom.gateway.exposures.result_texts.KEPT_LIMIT", 19_000)
    dropped = outcome_of("a", None, result, max_bytes=0, max_lines=0)
    assert (dropped.rest, dropped.details["mcpResult"]["omitted"]) == (None, True)


def test_how_long_files_are_kept_is_a_setting(tmp_path: Path) -> None:
    room = KnownRoom(output_keep=3_600.0, output_keep_bytes=150_000)
    room.answer = {"content": [{"type": "text", "text": "x" * 100_000}]}
    spill = Spill(tmp_path / "out")
    old, recent = spill.write("old"), spill.write("recent")
    _age(old, 3_601)

    room.result_of({"tool": "clock_now"}, spill=spill)
    assert not old.exists()
    assert recent.exists()
    room.result_of({"tool": "clock_now"}, spill=spill)
    assert len(spill.kept()) == 1, "two would be more than is to be kept"


def test_a_page_begins_with_a_whole_character(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    text = "a\U0001f600b\u00e4c"
    kept = id_of(spill.write(text))
    for offset in range(len(text.encode()) + 2):
        page = spill.page(kept, offset, 100, 100)
        assert page is not None
        assert page.text == text.encode()[min(offset, page.size) :].decode(errors="ignore")
        assert text.encode()[page.start : page.end].decode() == page.text


@for_each(
    ("block", "is_binary"),
    [
        ({"type": "image", "data": "x" * 4}, False),
        ({"type": "image", "data": "x" * 5}, True),  # of the bound, which is four characters
        ({"type": "image"}, False),
        ({"type": "audio", "data": ""}, True),
        ({"type": "audio"}, False),
        ({"type": "resource", "resource": {"blob": ""}}, True),
        ({"type": "resource", "resource": {"text": ""}}, False),
        ({"type": "resource_link", "uri": "x:/", "blob": ""}, False),
        ({"type": "text", "text": "t", "uri": "x:/", "blob": "b"}, False),
        ({"uri": "x:/", "blob": ""}, True),
        ({"blob": ""}, False),
    ],
)
@for_each("key", ["content", "contents"])
def test_what_is_binary(block: Any, is_binary: bool, key: str) -> None:
    for others in (0, 1, 1_000):
        blocks = [{"type": "text", "text": "x"}] * others
        assert goes_to_files({key: [*blocks, block]}, 4) is is_binary
    assert goes_to_files({key: [{"type": "image", "data": "x" * 5}]}, 0) is False, "0 is no bound"


def _fails(*_: object, **__: object) -> Any:
    raise OSError("no room")


def test_an_output_that_cannot_be_written_whole_is_not_kept(tmp_path: Path) -> None:
    pieces = (piece if piece != b"2" else _fails() for piece in (b"1", b"2"))
    with pytest.raises(OSError, match="no room"):
        Spill(tmp_path)._write(pieces, ".txt")
    assert list(tmp_path.iterdir()) == []


@for_each("key", ["content", "contents", "resultType", "ttlMs", "cacheScope"])
def test_what_is_said_elsewhere_is_not_in_the_details(key: str) -> None:
    value = "x" if key == "resultType" else [] if "content" in key else 1
    assert "mcpResult" not in outcome_of("s", None, {key: value}, max_bytes=0, max_lines=0).details
    more = outcome_of("s", None, {key: value, "else": 1}, max_bytes=0, max_lines=0).details
    assert more["mcpResult"] == {"else": 1}


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_rest_that_just_fits_the_details_stays_there(over: int) -> None:
    rest = {"a": "x" * (REST_LIMIT - len('{"a":""}') + over)}
    outcome = outcome_of("s", None, rest, max_bytes=0, max_lines=0)
    assert (outcome.rest is None) is (over <= 0)
    assert (outcome.details["mcpResult"] == rest) is (over <= 0)


def test_a_scaled_image_may_just_fit() -> None:
    data = picture("RGB", 1_000)
    found = result_texts._scaled(data, len(data) - 1)
    assert found is not None
    size = len(found[0])
    assert result_texts._scaled(data, size) == found
    smaller = result_texts._scaled(data, size - 1)
    assert smaller is None or len(smaller[0]) < size


def test_why_an_output_was_not_written_is_told_even_if_the_rest_of_it_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink(_self: Path, missing_ok: bool = False) -> None:
        raise PermissionError("removing")

    monkeypatch.setattr(Path, "unlink", unlink)
    pieces = (_fails() for _ in range(1))
    with pytest.raises(OSError, match="no room"):
        Spill(tmp_path)._write(pieces, ".txt")


# ---- large results ---------------------------------------------------------------------------------------------------


def keeping(folder: Path) -> OutputRules:
    return OutputRules(Spill(folder), FOR_MODELS, {"max_bytes": MAX_BYTES, "max_lines": MAX_LINES}, 0)


def test_a_large_structure_is_kept_as_the_json_that_it_is(tmp_path: Path) -> None:
    structured = b'{"x" : "%b"}' % (b"a\\n" * LARGE_MESSAGE)
    raw = b'{"content":[{"type":"text","text":"said"}],"structuredContent":%b}' % structured
    outcome = outcome_of_bytes("s", None, raw, None, keeping(tmp_path))
    assert outcome is not None
    assert outcome.guarded.spill == f"said\n{structured.decode()}"


def test_a_large_text_is_kept_once_when_the_structure_says_the_same(tmp_path: Path) -> None:
    said = b"z" * LARGE_MESSAGE
    raw = b'{"content":[{"type":"text","text":"%b"}],"structuredContent":{"result":"%b"}}' % (said, said)
    outcome = outcome_of_bytes("s", None, raw, None, keeping(tmp_path))
    assert outcome is not None
    assert outcome.guarded.spill == said.decode()


def test_a_text_of_millions_of_escapes_is_kept_as_json(tmp_path: Path) -> None:
    for escapes, is_decoded in ((DECODED_ESCAPES, True), (DECODED_ESCAPES + 1, False)):
        raw = b'{"content":[{"type":"text","text":"%b"}]}' % (b"\\t" * escapes)
        outcome = outcome_of_bytes("s", None, raw, None, keeping(tmp_path))
        assert outcome is not None
        assert outcome.guarded.spill == ("\t" * escapes if is_decoded else raw.decode())


def test_a_large_result_that_is_no_object_is_none(tmp_path: Path) -> None:
    assert outcome_of_bytes("s", None, b"[%b]" % (b" " * LARGE_MESSAGE), None, keeping(tmp_path)) is None
