"""What is read of a document, and what of it is left out."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.junk import VALUES, dumped
from tests.support.rows import for_each

from greenroom.openapi.document import (
    NAME,
    ApiDocument,
    DocumentError,
    SecurityScheme,
    read_document,
    tool_name,
)
from greenroom.openapi.document_names import Names
from greenroom.openapi.request import ArgumentError, build_request


def read(paths: Any, **members: Any) -> ApiDocument:
    said = {"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "paths": paths, **members}
    return read_document(json.dumps(said).encode(), "t.json")


@for_each(
    ("data", "what"),
    [
        (b"", "t.json: is not JSON"),
        (b"[]", "t.json: is not an object"),
        (b"7", "t.json: is not an object"),
        (b"{}", 't.json: says neither "openapi" nor "swagger"'),
        (b'{"openapi":', "t.json: is not JSON"),
        (b"a: [", "t.json: is not valid YAML"),
        (b"\xff\xfe", "t.json: is not text"),
        (b"[" * 100_000, "t.json: is not JSON"),
        (
            b'{"openapi":"4.0.0","paths":{}}',
            "t.json: is OpenAPI '4.0.0'; what is read is 3.x and Swagger 2.0",
        ),
        (b'{"swagger":"1.2","paths":{}}', "t.json: is OpenAPI '1.2'"),
        (b'{"openapi":"3.0.0"}', "t.json: has no paths"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_is_no_document_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(DocumentError) as refused:
        read_document(data, "t.json")
    assert str(refused.value).startswith(what)


def test_what_a_document_says_of_itself() -> None:
    servers = [
        {"url": "https://{host}/{v}", "variables": {"host": {"default": "a.test"}}},
        {"url": "/relative"},
        {"nothing": 1},
    ]
    schemes = {
        "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "login": {"type": "http", "scheme": "Bearer"},
        "same": {"$ref": "#/components/securitySchemes/key"},
        "gone": {"$ref": "#/nowhere"},
    }
    own = {
        "get": {"security": [], "servers": [{"url": "http://own"}]},
        "post": {},
        "servers": [{"url": "http://path"}],
    }
    found = read(
        {"/x": own},
        info={"title": "T", "version": 1.5},
        servers=servers,
        security=[{"key": [], "login": ["a"]}, {}],
        components={"securitySchemes": schemes},
    )
    assert (found.title, found.version) == ("T", "1.5")
    assert found.servers == ("https://a.test/{v}", "/relative")
    assert found.security_schemes == {
        "key": SecurityScheme("key", "apiKey", "header", "X-Key"),
        "login": SecurityScheme("login", "http", scheme="bearer"),
        "same": SecurityScheme("same", "apiKey", "header", "X-Key"),
    }
    get, post = found.operations["get_x"], found.operations["post_x"]
    assert (get.servers, get.security) == (("http://own",), ())
    assert (post.servers, post.security) == (("http://path",), (frozenset({"key", "login"}), frozenset()))


def test_operations_become_tools_with_valid_and_unique_names() -> None:
    named = {"operationId": "pets/get.one"}
    paths = {
        "/a": {"get": named, "post": named},
        "/b/{id}": {"delete": {}},
        "/c": {"get": {"operationId": "x" * 90}, "put": {"operationId": "x" * 90}},
        "/d": {"get": {"operationId": "a__b"}, "put": {"operationId": "é"}, "post": {"operationId": 7}},
    }
    names = [*read(paths).operations]
    assert names[:3] == ["pets_get_one", "pets_get_one_2", "delete_b_id"]
    assert [len(name) for name in names[3:5]] == [NAME, NAME]
    assert names[5:] == ["a__b", "operation", "post_d"]


@given(st.text(max_size=80), st.sets(st.text("ab_2", max_size=4), max_size=6))
def test_any_name_is_valid_and_new(said: str, taken: set[str]) -> None:
    name = tool_name(said, Names(NAME, taken))
    assert 0 < len(name) <= NAME
    assert name.isascii()
    assert name.replace("_", "").replace("-", "").isalnum() or set(name) <= {"_", "-"}
    assert name not in taken


def test_a_server_of_one_operation_is_a_note_because_nothing_is_sent_there() -> None:
    paths = {
        "/a": {"get": {"servers": [{"url": "https://uploads.test/v1"}]}},
        "/b": {"servers": [{"url": "https://api.test/other"}, {"url": "https://x.test"}], "get": {}},
        "/c": {"get": {"servers": [{"url": "/v2"}, {"url": "http://["}]}},
    }
    found = read(paths, servers=[{"url": "https://API.test/v1"}]).operations
    assert [each.notes for each in found.values()] == [
        [
            "The document has a server of its own for it, https://uploads.test/v1, and it is sent to the base URL."
        ],
        [],
        [],
    ]
    assert not any(each.notes for each in read(paths).operations.values()), "the base URL may be theirs"


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-HTTP-Method", "x-method-override"])
def test_no_argument_makes_another_method_of_a_request(name: str) -> None:
    """A GET needs no approval."""
    get = {"parameters": [{"name": name, "in": "header", "schema": {"type": "string", "default": "DELETE"}}]}
    (tool,) = read({"/x": {"get": get}}).operations.values()
    assert tool.inputs.arguments == []
    assert tool.notes == [f"The parameter '{name}' is left out: that header is not a parameter's to set."]


def test_a_method_is_what_is_sent_and_what_is_said_of_it() -> None:
    """Whatever its letters: HTTP clients send capitals. CONNECT would make a tunnel of the connection."""
    found = read({"/x": {"additionalOperations": {"Delete": {}, "CONNECT": {}, "connect": {}}}})
    (tool,) = found.operations.values()
    assert tool.method == "DELETE"
    assert tool.annotations()["destructiveHint"] is True
    assert found.notes == ("CONNECT /x is left out: it is not an operation.",)


def test_a_method_that_is_no_text_is_none() -> None:
    document = b"openapi: 3.2.0\npaths:\n  /x:\n    additionalOperations:\n      1: {}\n      yes: {}\n      null: {}\n"
    assert {each.method for each in read_document(document, "t").operations.values()} <= {
        "YES",
        "TRUE",
        "NONE",
        "NULL",
    }


def test_numbers_of_names_go_on_where_they_were() -> None:
    """A document may call each of its operations the same, and looking for a number must not begin anew each time."""

    class Counting(set[str]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            Counting.looks += 1
            return super().__contains__(name)

    names = Names(8)
    names._taken = Counting()
    found = [names.new("abcdefghij"[: 7 + number % 2]) for number in range(2_000)]
    assert len(set(found)) == 2_000
    assert max(map(len, found)) == 8
    assert Counting.looks < 3 * 2_000


def test_what_an_operation_says() -> None:
    paths = {
        "/x": {
            "summary": "Of the path",
            "get": {"summary": "S", "description": "What S does", "tags": ["a", 7], "deprecated": True},
            "post": {"description": "D"},
            "delete": {},
            "put": {"summary": " "},
            "patch": {"summary": "Change"},
            "head": {},
        },
        "/y": {"get": {}},
    }
    tools = read(paths).operations
    get = tools["get_x"]
    assert (get.title, get.description, get.tags) == (
        "S",
        "Deprecated.\n\nWhat S does",
        ("a",),
    )
    assert tools["post_x"].description == "Of the path\n\nD"
    assert tools["get_y"].description == "GET /y"
    assert {each.method: each.annotations() for each in tools.values() if each.path == "/x"} == {
        "GET": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": True},
        "HEAD": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": True},
        "POST": {"readOnlyHint": False, "openWorldHint": True},
        "PUT": {
            "readOnlyHint": False,
            "idempotentHint": True,
            "destructiveHint": True,
            "openWorldHint": True,
        },
        "PATCH": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
        "DELETE": {
            "readOnlyHint": False,
            "idempotentHint": True,
            "destructiveHint": True,
            "openWorldHint": True,
        },
    }


def test_one_bad_corner_costs_an_operation_or_a_part_and_is_noted() -> None:
    paths = {
        "/good": {"get": {}},
        "x-own": {"get": {}},
        "no-slash": {"get": {}},
        "/../up": {"get": {}},
        "/a/%2e%2e/b": {"get": {}},
        "/none": None,
        "/away": {"$ref": "other.yaml#/x"},
        "/circle": {"$ref": "#/paths/~1circle"},
        "/shared": {"$ref": "#/components/pathItems/shared", "delete": {}},
        "/escaped/{id}": {"$ref": "#/paths/~1odd~1%7Bid%7D"},
        "/odd/{id}": {"get": {"operationId": "odd"}},
        "/bad": {"get": [], "post": {}},
    }
    found = read(paths, components={"pathItems": {"shared": {"put": {}}}})
    assert [*found.operations] == ["get_good", "put_shared", "delete_shared", "odd", "odd_2", "post_bad"]
    assert found.notes == (
        "'no-slash' is left out: it begins with no slash.",
        "'/../up' is left out: it has a step upwards.",
        "'/a/%2e%2e/b' is left out: it has a step upwards.",
        "/none is left out: it is not an object.",
        '/away is left out: "other.yaml#/x" is outside the document, and is not read.',
        '/circle is left out: "#/paths/~1circle" refers to itself.',
        "GET /bad is left out: it is not an operation.",
    )


def test_parameters_that_cannot_be_used_are_noted_by_their_operation() -> None:
    parameters = [
        {"$ref": "#/components/parameters/gone"},
        {"name": "Authorization", "in": "header"},  # OpenAPI has it ignored
        {"name": "Host", "in": "header"},
        {"name": "bad name", "in": "header"},
        {"name": "b;c", "in": "cookie"},
        {"name": "nowhere", "in": "path"},
        {"in": "query"},
        {"name": "odd", "in": "query", "style": "matrix"},
        {"name": "x", "in": "somewhere"},
        7,
    ]
    found = read(
        {"/x/{y}": {"get": {"parameters": parameters, "requestBody": {"$ref": "other.json"}}}}
    ).operations["get_x_y"]
    assert [*found.listed()[0]["inputSchema"]["properties"]] == ["odd", "y"]
    assert found.notes == [
        'A parameter is left out: the reference "#/components/parameters/gone" leads nowhere.',
        'Its body is left out: the reference "other.json" is outside the document, and is not read.',
        "The parameter 'Host' is left out: that header is not a parameter's to set.",
        "The parameter 'bad name' is left out: no header can have that name.",
        "The parameter 'b;c' is left out: no cookie can have that name.",
        "The parameter 'nowhere' is left out: its path has no place for it.",
        "The parameter '' is left out: it has no name.",
        "The style 'matrix' of the parameter 'odd' is not for its place: the default is used.",
        "The path has {y}, which is not declared: it is taken as a text.",
    ]


def test_what_is_new_in_3_2() -> None:
    search = {"operationId": "search", "parameters": [{"name": "s", "in": "cookie", "style": "cookie"}]}
    whole = {
        "name": "all",
        "in": "querystring",
        "content": {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}},
    }
    paths = {"/x": {"query": search, "additionalOperations": {"COPY": {"parameters": [whole]}, "B AD": {}}}}
    found = read(paths, openapi="3.2.0")
    assert [*found.operations] == ["search", "copy_x"]
    assert found.notes == ("B AD /x is left out: it is not an operation.",)
    request = build_request(found.operations["search"], {"s": ["a=b&c", "d"]}, "http://h")
    assert (request.method, dict(request.headers)["Cookie"]) == ("QUERY", "s=a=b&c; s=d")
    for value in ("a;b", "a b", "é", '"'):
        with pytest.raises(ArgumentError, match="a cookie cannot hold it"):
            build_request(found.operations["search"], {"s": value}, "http://h")
    assert found.operations["search"].annotations()["readOnlyHint"] is True
    request = build_request(found.operations["copy_x"], {"all": {"a": ["1", "2"], "b": "c d"}}, "http://h")
    assert (request.method, request.url) == ("COPY", "http://h/x?a=1&a=2&b=c%20d")


def test_yaml_says_the_same_as_json() -> None:
    text = """
    openapi: 3.1
    info: {title: T, version: 1.0}
    x-common: &shared {description: ok}
    paths:
      /x:
        get:
          responses:
            200:
              <<: *shared
              content: {application/json: {schema: {type: object, properties: {no: {enum: [no, off]}}}}}
    """
    found = read_document(text.encode(), "t.yaml")
    assert found.title == "T"
    schema = found.operations["get_x"].output_schema()
    assert schema == {"type": "object", "properties": {"no": {"enum": ["no", "off"]}}}


def test_a_large_document_that_is_decoded_in_pieces_is_the_same() -> None:
    paths = {
        f"/p{number}": {"get": {"operationId": f"o{number}", "description": "é" * 500, "x": ["😀", number]}}
        for number in range(3000)
    }
    found = read(paths, servers=[{"url": "http://x"}] * 900)
    assert len(found.operations) == 3000
    assert found.operations["o2999"].raw == paths["/p2999"]["get"]
    assert len(found.servers) == 900


def test_what_stays_json_is_found_again() -> None:
    said: dict[str, Any] = {
        "get": {
            "operationId": "one",
            "parameters": [{"name": "q", "in": "query"}],
            "security": [{"key": []}],
        },
        "additionalOperations": {"COPY": {"operationId": "two", "servers": [{"url": "http://c"}]}},
    }
    paths = {f"/p{number}": {"get": {"description": "x" * 500}} for number in range(300)}
    operations = read({"/a": said, "/b": {"$ref": "#/paths/~1a", "x": 1}, **paths}).operations
    assert operations["one"].item == said
    assert operations["one"].raw == said["get"] == operations["one_2"].raw
    assert operations["two"].raw == said["additionalOperations"]["COPY"]
    assert operations["two"].servers == ("http://c",)
    assert operations["one"].security == (frozenset({"key"}),)
    assert operations["one"].inputs is operations["one"].inputs, "each call needs them"
    assert operations["one_2"].inputs.arguments == operations["one"].inputs.arguments == ["q"]
    assert operations["one_2"].item == said


def test_many_operations_are_little_work_for_the_garbage_collector() -> None:
    """It goes over all that it knows in one go, and no other thread runs meanwhile."""
    one = {
        "get": {
            "parameters": [{"name": "q", "in": "query", "schema": {"enum": ["a"]}}],
            "responses": {"200": {}},
        }
    }
    gc.collect()
    before = len(gc.get_objects())
    found = read({f"/p{number}": one for number in range(3000)})
    for each in found.operations.values():
        assert each.listed()[0]["inputSchema"]["properties"]
    gc.collect()
    assert len(gc.get_objects()) - before < 1000
    assert len(found.operations) == 3000


def test_it_is_read_in_any_thread() -> None:
    found = list[ApiDocument]()
    thread = threading.Thread(target=lambda: found.append(read({"/x": {"get": {}}})))
    thread.start()
    thread.join()
    assert [*found[0].operations] == ["get_x"]


@given(
    st.fixed_dictionaries(
        {"openapi": st.sampled_from(["3.0.0", "3.1.0", "3.2.0"]) | VALUES},
        optional={
            "swagger": st.just("2.0"),
            "info": VALUES,
            "servers": VALUES
            | st.lists(st.dictionaries(st.sampled_from(["url", "variables"]), VALUES), max_size=2),
            "security": VALUES,
            "components": VALUES,
            "consumes": VALUES,
            "produces": VALUES,
            "paths": VALUES
            | st.dictionaries(
                st.sampled_from(["/a", "/a/{b}", "x", "/{b}{c}"]),
                VALUES
                | st.dictionaries(
                    st.sampled_from(["get", "post", "parameters", "$ref", "additionalOperations"]),
                    VALUES
                    | st.dictionaries(
                        st.sampled_from(
                            [
                                "operationId",
                                "tags",
                                "parameters",
                                "requestBody",
                                "responses",
                                "security",
                                "deprecated",
                            ]
                        ),
                        VALUES
                        | st.lists(
                            st.dictionaries(
                                st.sampled_from(
                                    ["name", "in", "schema", "style", "content", "type", "collectionFormat"]
                                ),
                                st.sampled_from(["b", "path", "query", "header", "body", "formData", "csv"])
                                | VALUES,
                            ),
                            max_size=3,
                        ),
                    ),
                    max_size=3,
                ),
                max_size=3,
            ),
        },
    )
)
def test_whatever_a_document_says_it_is_read_or_refused(said: dict[str, Any]) -> None:
    try:
        found = read_document(dumped(said), "t.json")
    except DocumentError:
        return
    for operation in found.operations.values():
        tool = operation.listed(with_output=True)[0]
        json.dumps(tool)
        assert isinstance(operation.notes + list(operation.servers) + list(operation.security), list)
        assert [*tool["inputSchema"]["properties"]] == operation.inputs.arguments


@pytest.mark.parametrize(
    ("member", "what"),
    [(b"[" + b"1," * 5_000_000 + b"1]", "values and keys"), (b'"' + rb"\n" * 5_000_001 + b'"', "escaped")],
)
def test_a_document_that_would_hold_the_interpreter_is_refused(member: bytes, what: str) -> None:
    """Decoding lets no other thread run, so how much there is to decode is counted first (issue 38)."""
    said = b'{"openapi": "3.1.0", "paths": {}, "x-large": %b}'
    with pytest.raises(DocumentError, match=what):
        read_document(said % member, "its document")
    assert read_document(said % (b'"' + b"[1,2]," * 5_000_000 + b'"'), "its document").operations == {}
