"""What is read of a document, and what of it is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from greenroom.openapi.document import Document, DocumentError, read_document


def read(paths: dict[str, Any], **members: Any) -> Document:
    said = {"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "paths": paths, **members}
    return read_document(json.dumps(said).encode(), "t.json")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "t.json: is no JSON"),
        (b"[]", "t.json: is no object"),
        (b"{}", 't.json: says neither "openapi" nor "swagger"'),
        (b'{"openapi":"4.0.0","paths":{}}', "t.json: is OpenAPI '4.0.0'"),
        (b'{"openapi":"3.0.0"}', "t.json: has no paths"),
    ],
)
def test_what_is_no_document_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(DocumentError, match=f"^{what}"):
        read_document(data, "t.json")


def test_operations_become_tools_with_valid_and_unique_names() -> None:
    named = {"operationId": "pets/get.one"}
    paths = {
        "/a": {"get": named, "post": named},
        "/b/{id}": {"delete": {}},
        "/c": {"get": {"operationId": "x" * 90}},
    }
    document = read(paths)
    assert list(document.operations)[:3] == ["pets_get_one", "pets_get_one_2", "delete_b_id"]
    assert [len(name) for name in document.operations][3] == 64
    assert [each.method for each in document.operations.values()] == ["GET", "POST", "DELETE", "GET"]
