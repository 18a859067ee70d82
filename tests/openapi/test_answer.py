"""What an HTTP answer becomes: whatever the API said is given."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.openapi.answer import ERROR_CHARACTERS, to_result
from greenroom.openapi.document import read_document
from greenroom.openapi.operation import Operation
from greenroom.protocol.jsonrpc.encoding import encode


def operation(method: str = "get", schema: Any = None) -> Operation:
    responses = {"200": {"description": "", "content": {"application/json": {"schema": schema or {}}}}}
    said = {"operationId": "op", "responses": responses}
    document = {"openapi": "3.1.0", "info": {}, "paths": {"/x": {method: said}}}
    return read_document(json.dumps(document).encode(), "t.json").operations["op"]


OPERATION = operation()
JSON = "application/json"


def result(
    media: str | None, body: bytes, status: int = 200, more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    headers = {} if media is None else {"Content-Type": media}
    return to_result(OPERATION, status, {**headers, **(more or {})}, body)


def text_of(found: dict[str, Any]) -> str:
    assert [each["type"] for each in found["content"]] == ["text"]
    return found["content"][0]["text"]


@for_each(
    ("media", "body", "structured", "text"),
    [
        (JSON, b'{"a": 1}', {"a": 1}, '{"a": 1}'),
        (f"{JSON}; charset=UTF-8", '{"a":"é"}'.encode(), {"a": "é"}, '{"a":"é"}'),
        (f"{JSON}; charset=iso-8859-1", b'{"a":"\xe9"}', {"a": "é"}, '{"a":"é"}'),
        (f"{JSON}; charset=utf-16", '{"a":1}'.encode("utf-16"), {"a": 1}, '{"a":1}'),
        (JSON, b'\xef\xbb\xbf{"a":1}', {"a": 1}, '{"a":1}'),
        ("application/problem+json", b"{}", {}, "{}"),
        (JSON, b"[1,2]", {"result": [1, 2]}, "[1,2]"),
        (JSON, b"null", {"result": None}, "null"),
        (JSON, b'"x"', {"result": "x"}, '"x"'),
        (None, b' {"a":1}', {"a": 1}, ' {"a":1}'),
        ("text/plain", b'{"a":1}', {"a": 1}, '{"a":1}'),
        ("application/octet-stream", b"[1]", {"result": [1]}, "[1]"),
    ],
)
def test_json_is_text_and_structure(media: str | None, body: bytes, structured: Any, text: str) -> None:
    found = result(media, body)
    assert found["structuredContent"] == structured
    assert text_of(found) == text
    assert "isError" not in found


@for_each(
    ("media", "body", "text"),
    [
        (JSON, b"<html>", "<html>"),
        (JSON, b'{"a":', '{"a":'),
        ("text/html; charset=nonsense", b"<p>", "<p>"),
        ("text/plain; charset=unicode_escape", b"\\x41", "\\x41"),
        ("text/csv", b"a,b", "a,b"),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
        ("application/xml", "<é/>".encode(), "<é/>"),
        (None, b"plain", "plain"),
        ("text/plain", b"\xff", "\ufffd"),
        ("application/x-ndjson", b"{}\n{}", "{}\n{}"),
    ],
)
def test_what_is_no_json_is_text_whatever_it_claims(media: str | None, body: bytes, text: str) -> None:
    found = result(media, body)
    assert text_of(found) == text
    assert "structuredContent" not in found


def test_an_answer_that_breaks_its_schema_is_given() -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    found = to_result(operation(schema=schema), 200, {"content-type": JSON}, b'{"n": "not a number"}')
    assert found == {
        "content": [{"type": "text", "text": '{"n": "not a number"}'}],
        "structuredContent": {"n": "not a number"},
    }


def test_images_and_audio_are_blocks_and_other_bytes_a_resource() -> None:
    data = b"\x89PNG\xff"
    base64 = b64encode(data).decode()
    assert result("image/png", data)["content"] == [
        {"type": "image", "data": base64, "mimeType": "image/png"}
    ]
    assert result("Audio/MPEG; x=y", data)["content"] == [
        {"type": "audio", "data": base64, "mimeType": "audio/mpeg"}
    ]
    for media, kind in (("application/pdf", "application/pdf"), (None, "application/octet-stream")):
        found = result(media, data, more={"Content-Disposition": 'attachment; filename="r é.pdf"'})
        resource = {"uri": "answer:///op/r%20%C3%A9.pdf", "mimeType": kind, "blob": base64}
        assert found["content"] == [{"type": "resource", "resource": resource}]
    assert result("application/zip", data)["content"][0]["resource"]["uri"] == "answer:///op/answer"


@pytest.mark.parametrize(
    ("status", "says"), [(204, "HTTP 204 No Content, without a body"), (299, "HTTP 299, without a body")]
)
def test_nothing_is_said_to_be_nothing(status: int, says: str) -> None:
    assert text_of(result(None, b"", status)) == says


def test_where_something_was_made_is_told() -> None:
    found = result(None, b"", 201, {"Location": "/x/7"})
    assert text_of(found) == "HTTP 201 Created, without a body; see /x/7"


def test_of_a_head_the_headers_are_the_answer() -> None:
    found = to_result(operation("head"), 200, {"ETag": "x", "Content-Length": "7"}, b"")
    assert text_of(found) == "HTTP 200 OK\ncontent-length: 7\netag: x"


def test_what_is_no_success_is_an_error_of_the_tool_with_its_body() -> None:
    found = result(JSON, b'{"message":"no such thing"}', 404)
    assert found["isError"] is True
    assert text_of(found) == 'The API answered HTTP 404 Not Found.\n{"message":"no such thing"}'
    assert found["structuredContent"] == {"status": 404, "body": {"message": "no such thing"}}

    found = result("text/html", b"<p>busy", 503, {"Retry-After": "7"})
    assert text_of(found) == "The API answered HTTP 503 Service Unavailable.\nretry-after: 7\n<p>busy"
    assert found["structuredContent"] == {"status": 503}


def test_a_redirect_is_told_and_not_followed() -> None:
    found = result(None, b"", 302, {"Location": "https://elsewhere.test/"})
    assert found["isError"] is True
    assert text_of(found) == (
        "The API answered HTTP 302 Found, and redirects are not followed.\nlocation: https://elsewhere.test/"
    )


def test_the_body_of_an_error_is_bounded_and_bytes_are_only_counted() -> None:
    found = text_of(result("text/plain", b"x" * 100_000, 500))
    assert len(found) < ERROR_CHARACTERS + 200
    assert found.endswith(f"({100_000 - ERROR_CHARACTERS:,} characters of it are left out)")
    assert text_of(result("image/png", b"\x89\xff", 500)).endswith("(2 bytes of image/png)")
    large = result(JSON, b'{"a":"' + b"x" * 100_000 + b'"}', 500)
    assert large["structuredContent"] == {"status": 500}


@given(
    st.integers(100, 599),
    st.sampled_from(
        [JSON, "text/plain", "text/x; charset=idna", "image/png", "", "x", "application/octet-stream"]
    ),
    st.binary(max_size=60) | st.sampled_from([b"[" * 2000, b'{"a":1e999}', b"9" * 400, b'"\\ud800"', b"NaN"]),
)
def test_any_answer_becomes_a_result_that_can_be_sent(status: int, media: str, body: bytes) -> None:
    found = result(media, body, status)
    json.dumps(found).encode()
    assert found["content"]
    assert (found.get("isError") is True) == (not 200 <= status < 300)
    assert isinstance(found.get("structuredContent", {}), dict)


@for_each(
    ("link", "told"),
    [
        ('<https://h/x?page=2&per_page=5>; rel="next", <https://h/x?page=9>; rel="last"',
         {"page": "2", "per_page": "5"}),
        ("<https://h/x?page=9>; rel=last, </x?filter%5Ba%5D=1&s=a&s=b>; title=\"more, <or> less\"; rel='x'", None),
        ("</x?filter%5Ba%5D=1&s=a&s=b>; rel=next", {"filter_a": "1", "s": ["a", "b"]}),
        ('<?page=3>;REL="prefetch next"', {"page": "3"}),
        ('<https://h/x?key=secret&page=2>; rel="next"', {"page": "2"}),
        ('<https://h/x?key=secret>; rel="next"', None),
        ('<https://h/x?page=2>; rel="nextish"', None),
        ('<https://[/x?page=2>; rel="next"', None),
        ("<" * 10_000, None),
        ("", None),
    ],
)  # fmt: skip
def test_a_next_page_is_told_by_the_arguments_that_lead_there(link: str, told: Any) -> None:
    names = ("page", "per_page", "filter[a]", "s")
    said = {"operationId": "op", "parameters": [{"name": name, "in": "query"} for name in names]}
    document = {"openapi": "3.1.0", "paths": {"/x": {"get": said}}}
    tool = read_document(json.dumps(document).encode(), "t.json").operations["op"]
    for media, body in ((JSON, b"[1]"), ("text/csv", b"a,b")):
        found = to_result(tool, 200, {"Content-Type": media, "Link": link}, body)
        first, *further = [each["text"] for each in found["content"]]
        assert first == body.decode()
        if told is None:
            assert not further
        else:
            (words,) = further
            assert words.startswith("There is a next page: ")
            assert json.loads(words.partition(": ")[2]) == told


@pytest.mark.parametrize("wrap", [b"%b", b'{"rows":\n%b}'])
def test_json_of_very_many_values_is_passed_on_as_it_is(wrap: bytes) -> None:
    """Decoding it would hold everybody up (issue 38)."""
    body = wrap % (b"[" + b"1," * 400_000 + b"1]")
    found = result(JSON, body)
    assert text_of(found) == body.decode()
    line = encode(found)
    assert b"\n" not in line
    said = json.loads(line)["structuredContent"]
    assert said == (json.loads(body) if wrap != b"%b" else {"result": json.loads(body)})


def test_json_of_more_values_than_a_message_may_have_is_text() -> None:
    body = b"[" + b"1," * 3_000_000 + b"1]"
    assert result(JSON, body) == {"content": [{"type": "text", "text": body.decode()}]}
