"""Documents of others, each with one trait (`data/NOTICE.md`): read without a note, and each tool can be called by
what its own schema says."""

from __future__ import annotations

import re
from pathlib import Path

from jsonschema import Draft202012Validator
from tests.support.rows import for_each
from tests.support.schema_sample import sample

from greenroom.openapi.document import ApiDocument, read_document
from greenroom.openapi.request import HttpRequest, build_request

DATA = Path(__file__).parent / "data"
COUNTS = {
    "circular-paths.json": 3,
    "circular.json": 1,
    "file-uploads.json": 3,
    "form-data.json": 1,
    "galaxy.yaml": 9,
    "parameters-cookies.json": 1,
    "parameters-style.json": 25,
    "petstore-2.0.json": 20,
    "polymorphism.json": 13,
    "response-http-behavior.json": 3,
    "schema-encoding-style.json": 1,
    "schema-visibility.json": 1,
    "webhooks.json": 0,
}


def document(name: str) -> ApiDocument:
    return read_document((DATA / name).read_bytes(), name)


def test_every_example_is_counted() -> None:
    assert {each.name for each in DATA.iterdir()} == {*COUNTS, "NOTICE.md"}


@for_each("name", COUNTS)
def test_an_example_becomes_tools_that_can_be_called(name: str) -> None:
    found = document(name)
    assert len(found.operations) == COUNTS[name]
    assert found.notes == ()
    for operation in found.operations.values():
        tool = operation.listed(with_output=True)[0]
        Draft202012Validator.check_schema(tool["inputSchema"])
        Draft202012Validator.check_schema(tool.get("outputSchema", {}))
        arguments = sample(tool["inputSchema"], tool["inputSchema"].get("$defs", {}), full=True)
        faults = Draft202012Validator(tool["inputSchema"]).iter_errors(arguments)
        assert [each.message for each in faults if each.validator != "oneOf"] == []
        request = build_request(operation, arguments, "http://127.0.0.1")
        assert request.url.startswith("http://127.0.0.1/")
        assert operation.notes == []


def test_swagger_in_the_words_of_openapi_3() -> None:
    petstore = document("petstore-2.0.json")
    assert petstore.servers == ("http://petstore.swagger.io/v2",)
    assert {name: each.kind for name, each in petstore.security_schemes.items()} == {
        "petstore_auth": "oauth2",
        "api_key": "apiKey",
    }
    tools = petstore.operations

    found = build_request(tools["findPetsByStatus"], {"status": ["sold", "pending"]}, "http://h")
    assert found.url == "http://h/pet/findByStatus?status=sold&status=pending"
    posted = build_request(tools["addPet"], {"name": "n", "photoUrls": []}, "http://h")
    assert (posted.method, posted.body) == ("POST", b'{"name":"n","photoUrls":[]}')
    changed = build_request(tools["updatePetWithForm"], {"petId": 1, "name": "a b"}, "http://h")
    assert (changed.url, changed.body) == ("http://h/pet/1", b"name=a%20b")
    uploaded = build_request(
        tools["uploadFile"], {"petId": 1, "file": {"base64": "AA=="}, "additionalMetadata": "m"}, "http://h"
    )
    assert dict(uploaded.headers)["Content-Type"].startswith("multipart/form-data; boundary=")
    listed = build_request(tools["createUsersWithArrayInput"], {"body": [{"id": 1}]}, "http://h")
    assert listed.body == b'[{"id":1}]'
    deleted = build_request(tools["deletePet"], {"petId": 1, "api_key": "k"}, "http://h")
    assert dict(deleted.headers) == {"Accept": "application/json, */*;q=0.1", "api_key": "k"}
    assert tools["getPetById"].security == (frozenset({"api_key"}),)
    assert tools["getInventory"].annotations() == {
        "readOnlyHint": True,
        "idempotentHint": True,
        "openWorldHint": True,
    }


VALUES = {"primitive": "blue", "array": ["blue", "black"], "object": {"R": 100, "G": 200}}
PLAIN, LIST = "primitive=blue", "array=blue&array=black"


@for_each(
    ("tool", "said"),
    [
        ("query_standard", f"query?{PLAIN}&{LIST}&R=100&G=200"),
        ("query_form_nonExploded", f"query/form?{PLAIN}&array=blue,black&object=R,100,G,200"),
        ("query_form_exploded", f"query/form?{PLAIN}&{LIST}&R=100&G=200"),
        (
            "query_spaceDelimited_nonExploded",
            "query/spaceDelimited?array=blue%20black&object=R%20100%20G%20200",
        ),
        (
            "query_pipeDelimited_nonExploded",
            "query/pipeDelimited?array=blue%7Cblack&object=R%7C100%7CG%7C200",
        ),
        ("query_deepObject_nonExploded", "query/deepObject?object%5BR%5D=100&object%5BG%5D=200"),
        ("paths_standard", "path/blue/blue,black/R,100,G,200"),
        ("paths_matrix_nonExploded", "path/matrix/;primitive=blue/;array=blue,black/;object=R,100,G,200"),
        ("paths_matrix_exploded", "path/matrix/;primitive=blue/;array=blue;array=black/;R=100;G=200"),
        ("paths_label_nonExploded", "path/label/.blue/.blue,black/.R,100,G,200"),
        ("paths_label_exploded", "path/label/.blue/.blue.black/.R=100.G=200"),
        ("paths_simple_exploded", "path/simple/blue/blue,black/R=100,G=200"),
    ],
)
def test_styles_are_written_as_the_table_of_openapi_has_them(tool: str, said: str) -> None:
    """The values are those of the table in OpenAPI 3.0.3 §4.7.12.3 (the colours)."""
    operation = document("parameters-style.json").operations[tool]
    arguments = {name: VALUES[name] for name in operation.inputs.arguments}
    assert build_request(operation, arguments, "http://h").url == f"http://h/anything/{said}"


@for_each(
    ("tool", "fields"),
    [
        (
            "formData_standard",
            [("primitive", "blue"), ("array", "blue"), ("array", "black"), ("object", '{"R":100,"G":200}')],
        ),
        (
            "formData_form_nonExploded",
            [("primitive", "blue"), ("array", "blue,black"), ("object", "R,100,G,200")],
        ),
        ("formData_spaceDelimited_nonExploded", [("array", "blue black"), ("object", "R 100 G 200")]),
        ("form_data_pipeDelimited_nonExploded", [("array", "blue|black"), ("object", "R|100|G|200")]),
        (
            "form_data_deepObject_exploded",
            [
                ("primitive", "blue"),
                ("array[]", "blue"),
                ("array[]", "black"),
                ("object[R]", "100"),
                ("object[G]", "200"),
            ],
        ),
    ],
)
def test_styles_of_multipart_forms(tool: str, fields: list[tuple[str, str]]) -> None:
    operation = document("parameters-style.json").operations[tool]
    arguments = {name: VALUES[name] for name in operation.inputs.arguments}
    request = build_request(operation, arguments, "http://h")
    parts = [
        re.search(r'name="(.*?)".*\r\n\r\n(.*)\r\n', each, re.DOTALL) for each in said_in(request).split("--")
    ]
    assert [(part[1], part[2]) for part in parts if part] == fields


def said_in(request: HttpRequest) -> str:
    assert request.body is not None
    return request.body.decode()
