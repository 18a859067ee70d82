"""What a call sends: every style and body, what is refused, and that no argument leaves its place."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.junk import VALUES
from tests.support.rows import for_each

from greenroom.openapi.document import ApiDocument, read_document
from greenroom.openapi.request import ArgumentError, HttpRequest, build_request

BASE = "https://api.test/base"
OBJECT = {"type": "object", "properties": {"R": {"type": "integer"}, "G": {"type": "integer"}}}
LIST = {"type": "array", "items": {"type": "string"}}
TEXT = {"type": "string"}


def parameter(name: str, place: str, schema: Any = TEXT, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": schema, "required": place == "path", **more}


def body(media: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"content": {media: {"schema": schema, **more}}, "required": True}


def operation(*parameters: Any, send: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "parameters": list(parameters),
        **({"requestBody": send} if send else {}),
        "responses": {},
        **more,
    }


JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
NESTED = {"type": "object", "properties": {"a": {"type": "object"}}}
FILES = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "more": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "note": TEXT,
        "about": OBJECT,
        "tags": LIST,
    },
}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "hard", "version": "1"},
    "components": {
        "parameters": {"page": parameter("page", "query", {"type": "integer"})},
        "schemas": {
            "Node": {
                "type": "object",
                "properties": {
                    "name": TEXT,
                    "kids": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
                },
            },
            "Cat": {
                "type": "object",
                "required": ["kind"],
                "properties": {"kind": TEXT, "lives": {"type": "integer"}},
            },
            "Dog": {"type": "object", "required": ["kind"], "properties": {"kind": TEXT, "bark": TEXT}},
            "Part": {
                "allOf": [
                    {"$ref": "#/components/schemas/Node"},
                    {
                        "type": "object",
                        "required": ["extra", "id"],
                        "properties": {
                            "extra": {"type": "string", "nullable": True},
                            "id": {"type": "string", "readOnly": True},
                        },
                    },
                ]
            },
        },
    },
    "paths": {
        "/simple/{id}": {
            "parameters": [{"$ref": "#/components/parameters/page"}],
            "get": operation(
                parameter("id", "path"),
                parameter("q", "query"),
                parameter("flag", "query", {"type": "boolean"}),
                parameter("X-Trace", "header"),
                parameter("X-List", "header", LIST),
                parameter("X-Object", "header", OBJECT, explode=True),
                parameter("sid", "cookie"),
                parameter("sizes", "cookie", LIST),
                operationId="simple",
            ),
        },
        "/a/{ids}": {"get": operation(parameter("ids", "path", LIST), operationId="path_list")},
        "/o/{o}": {"get": operation(parameter("o", "path", OBJECT), operationId="path_object")},
        "/oe/{o}": {
            "get": operation(parameter("o", "path", OBJECT, explode=True), operationId="path_object_exploded")
        },
        "/m/{m}": {
            "get": operation(parameter("m", "path", LIST, style="matrix", explode=True), operationId="matrix")
        },
        "/mf/{m}": {
            "get": operation(parameter("m", "path", LIST, style="matrix"), operationId="matrix_flat")
        },
        "/l/{m}": {"get": operation(parameter("m", "path", LIST, style="label"), operationId="label")},
        "/le/{m}": {
            "get": operation(
                parameter("m", "path", LIST, style="label", explode=True), operationId="label_exploded"
            )
        },
        "/two/{a}.{b}": {"get": operation(parameter("a", "path"), parameter("b", "path"), operationId="two")},
        "/q": {"get": operation(parameter("a", "query", LIST), operationId="form")},
        "/qc": {"get": operation(parameter("a", "query", LIST, explode=False), operationId="csv")},
        "/qs": {"get": operation(parameter("a", "query", LIST, style="spaceDelimited"), operationId="space")},
        "/qp": {"get": operation(parameter("a", "query", LIST, style="pipeDelimited"), operationId="pipe")},
        "/qd": {
            "get": operation(
                parameter("f", "query", OBJECT, style="deepObject", explode=True), operationId="deep"
            )
        },
        "/qo": {
            "get": operation(
                parameter("f", "query", OBJECT), parameter("page", "query"), operationId="object"
            )
        },
        "/qof": {"get": operation(parameter("f", "query", OBJECT, explode=False), operationId="object_flat")},
        "/qj": {
            "get": operation(
                {"name": "f", "in": "query", "content": {JSON: {"schema": OBJECT}}},
                {"name": "X-F", "in": "header", "content": {JSON: {"schema": OBJECT}}},
                operationId="content",
            )
        },
        "/qr": {"get": operation(parameter("u", "query", allowReserved=True), operationId="reserved")},
        "/clash/{id}": {
            "post": operation(
                parameter("id", "path"),
                parameter("id", "query"),
                send=body(JSON, {"type": "object", "properties": {"id": {"type": "integer"}}}),
                operationId="clash",
            )
        },
        "/tree": {
            "post": operation(send=body(JSON, {"$ref": "#/components/schemas/Node"}), operationId="tree")
        },
        "/pet": {
            "post": operation(
                send=body(
                    JSON,
                    {"oneOf": [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}]},
                ),
                operationId="one_of",
            )
        },
        "/part": {
            "post": operation(send=body(JSON, {"$ref": "#/components/schemas/Part"}), operationId="all_of")
        },
        "/list": {
            "post": operation(
                send=body(JSON, {"type": "array", "items": {"$ref": "#/components/schemas/Node"}}),
                operationId="list_body",
            )
        },
        "/map": {
            "post": operation(
                send=body(JSON, {"type": "object", "additionalProperties": TEXT}), operationId="map_body"
            )
        },
        "/formed": {
            "post": operation(
                send=body(
                    FORM,
                    {
                        "type": "object",
                        "properties": {"a": TEXT, "xs": LIST, "o": OBJECT, "j": OBJECT, "deep": NESTED},
                    },
                    encoding={
                        "o": {"style": "deepObject", "explode": True},
                        "deep": {"style": "deepObject", "explode": True},
                        "j": {"contentType": JSON},
                    },
                ),
                operationId="formed",
            )
        },
        "/up": {
            "post": operation(
                send=body(MULTIPART, FILES, encoding={"file": {"contentType": "image/png"}}),
                operationId="upload",
            )
        },
        "/raw": {
            "put": operation(
                send=body("application/octet-stream", {"type": "string", "format": "binary"}),
                operationId="raw",
            )
        },
        "/text": {"post": operation(send=body("text/plain", TEXT), operationId="text")},
        "/xml": {
            "post": operation(
                send=body("application/xml", {"$ref": "#/components/schemas/Node"}), operationId="xml"
            )
        },
        "/patch": {
            "patch": operation(send=body("application/merge-patch+json", OBJECT), operationId="patch")
        },
        "/either": {
            "post": operation(
                send={
                    "content": {MULTIPART: {"schema": FILES}, "application/vnd.x+json": {"schema": OBJECT}}
                },
                operationId="either",
            )
        },
        "/fixed?action=list#Part": {"get": operation(parameter("n", "query"), operationId="fixed")},
        "/undeclared/{x}": {"get": {"operationId": "undeclared"}},
        "/names": {
            "put": operation(
                parameter("filter[name]", "query"),
                parameter("$filter", "query"),
                parameter("ids[]", "query", LIST),
                parameter("filter_name", "query"),
                parameter("x" * 80, "query"),
                parameter("é", "query"),
                send=body(
                    JSON,
                    {"type": "object", "properties": {"@type": TEXT, "type": TEXT}, "required": ["@type"]},
                ),
                operationId="names",
            )
        },
        "/nullable": {
            "post": operation(
                send=body(
                    JSON, {"type": "object", "properties": {"v": {"type": "string", "nullable": True}}}
                ),
                operationId="nullable",
            )
        },
    },
}


def read(content: dict[str, Any]) -> ApiDocument:
    return read_document(json.dumps(content).encode(), "t.json")


TOOLS = read(DOCUMENT).operations


def sent(tool: str, /, **arguments: Any) -> HttpRequest:
    return build_request(TOOLS[tool], arguments, BASE)


@for_each(
    ("tool", "arguments", "target"),
    [
        ("simple", {"id": "a/b c", "q": "x&y=z é", "flag": True, "page": 2},
         "simple/a%2Fb%20c?page=2&q=x%26y%3Dz%20%C3%A9&flag=true"),
        ("simple", {"id": "1", "q": None, "page": 2.0}, "simple/1?page=2"),
        ("simple", {"id": 0, "q": ""}, "simple/0?q="),
        ("path_list", {"ids": ["1", "a,b"]}, "a/1,a%2Cb"),
        ("path_object", {"o": {"R": 1, "G": 2}}, "o/R,1,G,2"),
        ("path_object_exploded", {"o": {"R": 1, "G": 2}}, "oe/R=1,G=2"),
        ("matrix", {"m": ["1", "2"]}, "m/;m=1;m=2"),
        ("matrix", {"m": ""}, "m/;m"),
        ("matrix_flat", {"m": ["1", "2"]}, "mf/;m=1,2"),
        ("label", {"m": ["1", "2"]}, "l/.1,2"),
        ("label_exploded", {"m": ["1.5", "2"]}, "le/.1%2E5.2"),
        ("two", {"a": "x", "b": "y"}, "two/x.y"),
        ("form", {"a": ["1", "2 3"]}, "q?a=1&a=2%203"),
        ("form", {"a": []}, "q"),
        ("form", {"a": "one"}, "q?a=one"),
        ("csv", {"a": ["1", "2,3"]}, "qc?a=1,2%2C3"),
        ("space", {"a": ["1", "2"]}, "qs?a=1%202"),
        ("pipe", {"a": ["1", "2"]}, "qp?a=1%7C2"),
        ("deep", {"f": {"R": 1, "G": 2}}, "qd?f%5BR%5D=1&f%5BG%5D=2"),
        ("deep", {"f": {"a": {"b": ["1", "2"], "c": [{"d": 1}, {"d": 2}]}}},
         "qd?f%5Ba%5D%5Bb%5D%5B%5D=1&f%5Ba%5D%5Bb%5D%5B%5D=2&f%5Ba%5D%5Bc%5D%5B0%5D%5Bd%5D=1&f%5Ba%5D%5Bc%5D%5B1%5D%5Bd%5D=2"),
        ("object", {"f": {"R": 1, "G": None, "B": {"x": 1}}}, "qo?R=1&B=%7B%22x%22%3A1%7D"),
        ("object_flat", {"f": {"R": 1, "G": 2}}, "qof?f=R,1,G,2"),
        ("content", {"f": {"R": 1}}, "qj?f=%7B%22R%22%3A1%7D"),
        ("reserved", {"u": "a/b?c=d&e#f%"}, "qr?u=a/b?c%3Dd%26e%23f%25"),
        ("fixed", {"n": "1"}, "fixed?action=list&n=1"),
        ("undeclared", {"x": "y"}, "undeclared/y"),
    ],
)  # fmt: skip
def test_the_url_says_the_arguments(tool: str, arguments: dict[str, Any], target: str) -> None:
    request = sent(tool, **arguments)
    assert request.url == f"{BASE}/{target}"
    assert httpx2.URL(request.url).raw_path.decode() == f"/base/{target}", (
        "the client sends what is written here"
    )
    assert request.body is None


def test_headers_and_cookies() -> None:
    request = sent(
        "simple",
        id="1",
        **{"X-Trace": "t", "X-List": ["a", "b"], "X-Object": {"R": 1, "G": 2}},
        sid="a;b é",
        sizes=["1", "2"],
    )
    assert dict(request.headers) == {
        "Accept": "application/json, */*;q=0.1",
        "X-Trace": "t",
        "X-List": "a,b",
        "X-Object": "R=1,G=2",
        "Cookie": "sid=a%3Bb%20%C3%A9; sizes=1; sizes=2",
    }
    assert dict(sent("simple", id="1", **{"X-Trace": ""}).headers)["X-Trace"] == ""
    assert dict(sent("simple", id="1", **{"X-List": ["", "b"]}).headers)["X-List"] == ",b"
    assert dict(sent("content", **{"X-F": {"R": 1}}).headers)["X-F"] == '{"R":1}'


@for_each(
    ("tool", "arguments", "media", "content"),
    [
        ("tree", {"name": "r", "kids": [{"name": "k"}]}, JSON, '{"name":"r","kids":[{"name":"k"}]}'),
        ("one_of", {"body": {"kind": "cat", "lives": 9}}, JSON, '{"kind":"cat","lives":9}'),
        ("all_of", {"name": "n", "extra": None}, JSON, '{"name":"n","extra":null}'),
        ("list_body", {"body": [{"name": "x"}]}, JSON, '[{"name":"x"}]'),
        ("map_body", {"body": {"any": "thing"}}, JSON, '{"any":"thing"}'),
        ("nullable", {"v": None}, JSON, '{"v":null}'),
        ("nullable", {}, JSON, "{}"),
        ("patch", {"R": 1}, "application/merge-patch+json", '{"R":1}'),
        ("either", {"R": 1}, "application/vnd.x+json", '{"R":1}'),
        ("formed", {"a": "1 &", "xs": ["p", "q"], "o": {"R": 1}, "j": {"G": 2}},
         FORM, "a=1%20%26&xs=p&xs=q&o%5BR%5D=1&j=%7B%22G%22%3A2%7D"),
        ("formed", {"deep": {"a": {"b": [True]}}}, FORM, "deep%5Ba%5D%5Bb%5D%5B%5D=true"),
        ("raw", {"body": "hello"}, "application/octet-stream", "hello"),
        ("raw", {"body": {"base64": "aGVsbG8="}}, "application/octet-stream", "hello"),
        ("text", {"body": "hello é"}, "text/plain; charset=utf-8", "hello é"),
        ("text", {"body": {"base64": "aGVsbG8="}}, "text/plain", "hello"),
        ("xml", {"body": "<a/>"}, "application/xml", "<a/>"),
    ],
)  # fmt: skip
def test_the_body_says_the_arguments(tool: str, arguments: dict[str, Any], media: str, content: str) -> None:
    request = sent(tool, **arguments)
    assert request.body is not None
    assert request.body.decode() == content
    assert dict(request.headers)["Content-Type"] == media


def test_a_body_that_nobody_gives_is_not_sent() -> None:
    request = sent("either")
    assert request.body is None
    assert "Content-Type" not in dict(request.headers)


def test_names_that_clash_are_told_apart() -> None:
    request = sent("clash", id__path="p", id__query="q", id=3)
    assert request.url == f"{BASE}/clash/p?id=q"
    assert request.body == b'{"id":3}'
    assert [*TOOLS["clash"].listed()[0]["inputSchema"]["properties"]] == ["id__path", "id__query", "id"]


def test_names_that_models_cannot_take_are_given_otherwise_and_sent_as_they_are() -> None:
    names = TOOLS["names"].inputs.arguments
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in names)
    assert names[:4] == ["filter_name_2", "filter", "ids", "filter_name"]
    assert names[5:] == ["argument", "type", "type_2"]
    request = sent("names", **{name: name[:6] for name in names})
    assert parse_qsl(urlsplit(request.url).query) == [
        ("filter[name]", "filter"), ("$filter", "filter"), ("ids[]", "ids"), ("filter_name", "filter"),
        ("x" * 80, "xxxxxx"), ("é", "argume"),
    ]  # fmt: skip
    assert request.body == b'{"type":"type","@type":"type_2"}'
    with pytest.raises(ArgumentError, match='names needs the argument "type_2"'):
        sent("names", type="x")


@for_each(
    ("tool", "arguments", "argument", "says"),
    [
        ("simple", {}, "id", 'simple needs the argument "id".'),
        ("simple", {"id": None}, "id", 'simple needs the argument "id".'),
        ("simple", {"id": "1", "pages": 1}, "pages",
         'simple has no argument "pages". Did you mean "page"? It has: page, '),
        ("one_of", {"kind": "cat", "lives": 9}, "kind", 'one_of has no argument "kind". It has: body.'),
        ("one_of", {}, "body", 'one_of needs the argument "body".'),
        ("all_of", {"name": "n"}, "extra", "needs"),
        ("all_of", {"extra": "x", "id": "1"}, "id", "has no argument"),
        ("simple", {"id": ".."}, "id", 'The argument "id" would lead to another path'),
        ("simple", {"id": "a/../.."}, "id", "another path"),
        ("simple", {"id": "..\\x"}, "id", "another path"),
        ("simple", {"id": "%2e%2e"}, "id", "another path"),
        ("simple", {"id": "%252e"}, "id", "another path"),
        ("simple", {"id": ""}, "id", "is empty"),
        ("path_list", {"ids": []}, "ids", "is empty"),
        ("label", {"m": ["."]}, "m", "another path"),
        ("simple", {"id": "1", "X-Trace": "a\r\nX-Evil: 1"}, "X-Trace", "a header cannot hold it"),
        ("simple", {"id": "1", "X-Trace": "é"}, "X-Trace", "a header cannot hold it"),
        ("simple", {"id": "1", "X-Trace": " a"}, "X-Trace", "a header cannot hold it"),
        ("simple", {"id": "1", "X-List": ["a,b"]}, "X-List", "it holds ',', which separates"),
        ("simple", {"id": "1", "X-Object": {"a=b": "c"}}, "X-Object", "it holds '=', which separates"),
        ("space", {"a": ["1 2"]}, "a", "it holds 'a space', which separates"),
        ("pipe", {"a": ["1|2"]}, "a", "it holds '|', which separates"),
        ("object", {"f": {"page": 2}}, "f", 'its key "page" is an argument of its own'),
        ("deep", {"f": {"a][b": 1}}, "f", "has brackets"),
        ("upload", {"file": {"base64": "%"}}, "file", "its base64 cannot be decoded"),
        ("upload", {"file": 7}, "file", 'a file is a text, or an object with "path" or "base64"'),
        ("formed", {"a": {"b": object()}}, "a", "cannot be sent as JSON"),
        ("tree", {"name": object()}, "body", "cannot be sent as JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_by_name(
    tool: str, arguments: dict[str, Any], argument: str, says: str
) -> None:
    with pytest.raises(ArgumentError) as refused:
        sent(tool, **arguments)
    assert refused.value.argument == argument
    assert says in str(refused.value)


def test_files_of_a_form() -> None:
    request = sent(
        "upload",
        file={"base64": "iVBORw==", "filename": 'a"\r\nX: y.png'},
        more=[{"path": "/somewhere/b.bin"}, "text"],
        note="n é",
        about={"R": 1},
        tags=["x", "y"],
    )
    assert request.paths == ("/somewhere/b.bin",)
    assert request.body is None
    assert "Content-Type" not in dict(request.headers)
    filled = request.filled({"/somewhere/b.bin": b"\0\xff"})
    assert filled.unread is None
    assert parts_of(filled) == [
        ('form-data; name="file"; filename="a%22%0D%0AX: y.png"', "image/png", b"\x89PNG"),
        ('form-data; name="more"; filename="b.bin"', "application/octet-stream", b"\0\xff"),
        ('form-data; name="more"; filename="file"', "application/octet-stream", b"text"),
        ('form-data; name="note"', "", "n é".encode()),
        ('form-data; name="about"', JSON, b'{"R":1}'),
        ('form-data; name="tags"', "", b"x"),
        ('form-data; name="tags"', "", b"y"),
    ]


def test_a_whole_body_may_be_a_file() -> None:
    request = sent("raw", body={"path": "x/y.bin"})
    assert request.paths == ("x/y.bin",)
    filled = request.filled({"x/y.bin": b"\0"})
    assert (filled.body, dict(filled.headers)["Content-Type"]) == (b"\0", "application/octet-stream")


def parts_of(request: HttpRequest) -> list[tuple[str, str, bytes]]:
    """Disposition, content type and content of each part, as a strict reader of RFC 7578 sees them."""
    media = dict(request.headers)["Content-Type"]
    boundary = media.partition("boundary=")[2].encode()
    assert media.startswith("multipart/form-data; ")
    assert request.body is not None
    pieces = (b"\r\n" + request.body).split(b"\r\n--" + boundary)
    assert pieces[0] == b""
    assert pieces[-1] == b"--\r\n"
    found = list[tuple[str, str, bytes]]()
    for piece in pieces[1:-1]:
        head, _, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        found.append((fields["Content-Disposition"], fields.get("Content-Type", ""), content))
    return found


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_no_file_can_hold_the_boundary(first: bytes, second: bytes) -> None:
    request = sent("upload", file={"path": "a"}, more=[{"path": "b"}]).filled({"a": first, "b": second})
    assert [content for _, _, content in parts_of(request)] == [first, second]


@given(st.sampled_from(sorted(TOOLS)), st.data())
def test_no_argument_leaves_its_place(tool: str, data: st.DataObject) -> None:
    """Whatever is given: a refusal that names an argument, or a request to the path of the operation."""
    named = TOOLS[tool].inputs.arguments
    values = (
        VALUES
        | st.text(max_size=8)
        | st.sampled_from(["..", "a/../b", "\r\nX: 1", "?x=1#y", "//evil", "@evil", "%2e%2e"])
    )
    arguments = data.draw(st.dictionaries(st.sampled_from(named or ["x"]), values, max_size=len(named)))
    try:
        request = build_request(TOOLS[tool], arguments, BASE)
    except ArgumentError:
        return
    url = urlsplit(request.url)
    literal = TOOLS[tool].path.partition("{")[0].partition("?")[0]
    assert (url.scheme, url.netloc, url.fragment) == ("https", "api.test", "")
    assert url.path.startswith(f"/base{literal}")
    assert url.path.count("/") == f"/base{TOOLS[tool].path}".partition("?")[0].count("/")
    assert not {".", ".."} & {*unquote(url.path).split("/")}
    assert str(httpx2.URL(request.url)) == request.url
    for name, value in request.headers:
        assert value.isprintable()
        assert name in {"Accept", "Content-Type", "Cookie", "X-Trace", "X-List", "X-Object", "X-F"}


@for_each("base", ["", "api.test", "ftp://x", "file:///etc", "https://"])
def test_a_base_url_is_http(base: str) -> None:
    with pytest.raises(ValueError, match="is not a base URL"):
        build_request(TOOLS["form"], {}, base)


def test_what_a_base_url_has_stays() -> None:
    request = build_request(TOOLS["form"], {"a": ["1"]}, "http://h:8080/v1/?key=k#x")
    assert request.url == "http://h:8080/v1/q?key=k&a=1"
    assert parse_qsl(urlsplit(request.url).query) == [("key", "k"), ("a", "1")]


@for_each(
    ("form", "sent"),
    [
        ({"url": {"type": "string"}, "file": {"type": "string", "format": "binary"}}, "multipart/form-data"),
        (
            {"url": {}, "files": {"type": "array", "items": {"type": "string", "format": "binary"}}},
            "multipart/form-data",
        ),
        ({"file": {"type": "string", "format": "binary"}}, JSON),  # it cannot say the URL
        ({"url": {"type": "string"}, "more": {"type": "string"}}, JSON),
    ],
)
def test_a_form_that_takes_a_file_and_all_else_comes_before_json(form: Any, sent: str) -> None:
    of_json = {"type": "object", "properties": {"url": {"type": "string"}}}
    content = {
        JSON: {"schema": of_json},
        "multipart/form-data": {"schema": {"type": "object", "properties": form}},
    }
    said = {"operationId": "op", "requestBody": {"content": content}}
    body = (
        read_document(json.dumps({"openapi": "3.1.0", "paths": {"/x": {"post": said}}}).encode(), "t")
        .operations["op"]
        .inputs.body
    )
    assert body is not None
    assert body.media == sent


@for_each(
    ("value", "path"),
    [
        ("a/b c", "/r/a/b%20c/end"),
        ("a?b#c%2e", "/r/a%3Fb%23c%252e/end"),
        ("a//b", "/r/a//b/end"),
        ("../x", ""),
        ("a/%2e%2e/b", ""),
        ("a/..", ""),
        ("a\\..\\b", ""),
        ("", ""),
    ],
)
def test_a_path_may_take_a_value_of_several_parts(value: str, path: str) -> None:
    """RFC 6570, `{+name}`; never a step upwards."""
    said = {
        "operationId": "op",
        "parameters": [{"name": "where", "in": "path", "schema": {"type": "string"}}],
    }
    document = {"openapi": "3.1.0", "paths": {"/r/{+where}/end": {"get": said}}}
    tool = read_document(json.dumps(document).encode(), "t").operations["op"]
    assert tool.notes == []
    if path:
        assert build_request(tool, {"where": value}, "http://h").url == f"http://h{path}"
    else:
        with pytest.raises(ArgumentError, match="where"):
            build_request(tool, {"where": value}, "http://h")


@for_each(
    ("listed", "sent"),
    [
        (["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"],
         "application/merge-patch+json"),
        (["application/json-patch+json", "application/json"], JSON),
        (["text/plain", "application/json-patch+json"], "application/json-patch+json"),
        (["application/xml", "multipart/form-data"], "multipart/form-data"),
        (["text/plain", "application/octet-stream"], "text/plain"),
    ],
)  # fmt: skip
def test_which_of_several_media_types_a_body_is_sent_in(listed: list[str], sent: str) -> None:
    said = {
        "operationId": "op",
        "requestBody": {"content": {media: {"schema": {"type": "object"}} for media in listed}},
    }
    document = {"openapi": "3.1.0", "paths": {"/x": {"patch": said}}}
    body = read_document(json.dumps(document).encode(), "t").operations["op"].inputs.body
    assert body is not None
    assert body.media == sent
