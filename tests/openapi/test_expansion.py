"""What is made of a document is bounded by itself, and not by the document: 160 kB of it once took gigabytes (issue
38). Each document here is small, and says a hundred times its size or much more."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.openapi.document import ApiDocument, DocumentError, read_document
from greenroom.openapi.request import ArgumentError, build_request

MIB = 1 << 20
BASE = "https://api.test"
LONG = "x" * 80_000
MANY = 2_000


def dumped(said: dict[str, Any]) -> bytes:
    return json.dumps({"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, **said}).encode()


def referring(item: Any) -> bytes:
    """A document of many paths that are all the same."""
    paths = {f"/{number}": {"$ref": "#/x", "summary": "s"} for number in range(MANY)}
    return dumped({"paths": paths, "x": item})


def templates(count: int) -> str:
    return "/" + "".join(f"{{{number}}}" for number in range(count))


def many(name: str, count: int = 10_000) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that Python held for it at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


DOCUMENTS = {
    "a URL of many variables with a long default": dumped({
        "paths": {},
        "servers": [{"url": "{a}" * 20_000, "variables": {"a": {"default": LONG}}}],
    }),
    "many servers with a long default": (
        f"openapi: 3.1.0\npaths: {{}}\nx: &v {{a: {{default: {'x' * 8_000}}}}}\nservers:\n"
        + "- {url: '{a}', variables: *v}\n" * 10_000
    ).encode(),
    "many schemes of a long host": json.dumps(
        {"swagger": "2.0", "paths": {}, "host": LONG, "basePath": "/", "schemes": ["https"] * 20_000}
    ).encode(),
    "an item with much beside its operations": referring(
        {"get": {}, **dict.fromkeys(many("x-", 5_000), 1)}
    ),
    "an item with a long title and description": referring(
        {"get": {"summary": f" {LONG}", "description": f" {LONG}."}}
    ),
    "an item with many tags": referring({"get": {"tags": many("t")}}),
    "an item with a long name": referring({"get": {"operationId": LONG}}),
    "an item of what are no operations": referring({"additionalOperations": dict.fromkeys(many("_", MANY), 1)}),
    "an item of many parameters": referring(
        {"get": {"parameters": [{"name": "a", "in": "nowhere"}] * 5_000}}
    ),
    "security schemes with a long name": dumped({
        "paths": {},
        "components": {
            "securitySchemes": {
                **{name: {"$ref": "#/components/securitySchemes/a"} for name in many("s", MANY)},
                "a": {"type": "http", "scheme": LONG.upper()},
            }
        },
    }),
    "many media types for many answers": json.dumps({
        "swagger": "2.0",
        "produces": many("a/"),
        "paths": {"/": {"get": {"responses": {each: {"schema": {}} for each in [*many("2", 5_000), "200"]}}}},
    }).encode(),
    "a path of many names with many operations": dumped({
        "paths": {templates(15_000): {"additionalOperations": {"A": {}, "B": {}, "C": {}}}}
    }),
    "a body with long words": referring(
        {"post": {"requestBody": {"description": LONG, "content": {"text/plain": {"schema": {"type": "string"}}}}}}
    ),
    "a version that is everything": (
        "openapi: 3.1.0\npaths: {}\n"
        f"a: &a {LONG}\nb: &b [{', '.join(['*a'] * 200)}]\ninfo: {{version: [{', '.join(['*b'] * 100)}]}}\n"
    ).encode(),
}  # fmt: skip


@for_each("name", DOCUMENTS)
def test_a_small_document_stays_small(name: str) -> None:
    data, found = DOCUMENTS[name], list[ApiDocument]()
    assert len(data) < 600_000

    def work() -> None:
        try:
            found.append(read_document(data, "t"))
        except DocumentError as problem:
            assert "when its aliases are written out" in str(problem)  # noqa: PT017 (either is right)
            return
        for each in list(found[0].operations.values())[:100]:
            each.listed(with_output=True)
            assert each.accepts

    assert peak_of(work) < 96 * MIB
    assert all(len(url) <= 8_192 for document in found for url in document.servers)


def test_whoever_gives_up_ends_the_reading() -> None:
    class GivenUp(Exception):
        pass

    def read(data: bytes, turns: int) -> None:
        left = iter(range(turns))

        def checkpoint() -> None:
            if next(left, None) is None:
                raise GivenUp

        read_document(data, "t", checkpoint=checkpoint)

    for data in (referring({"get": {}}), b"openapi: 3.1.0\npaths: {}\nx: [" + b"1, " * 50_000 + b"1]\n"):
        read(data, 100_000)
        with pytest.raises(GivenUp):
            read(data, 10)


def test_names_that_are_cut_alike_take_no_time_each() -> None:
    """Each of them once looked at all that came before it."""
    paths = {
        f"/{number}": {"get": {"operationId": "n" * 62 + f"{number % 4_000:04}"}} for number in range(8_000)
    }
    found = read_document(dumped({"paths": paths}), "t")
    assert len(found.operations) == 8_000


@for_each(
    ("path", "said"),
    [
        ("/" + "{a}" * 2_000, {"name": "a", "in": "path", "required": True}),
        ("/?x=" + "{a}" * 2_000, {"name": "a", "in": "path", "required": True}),
        ("/", {"name": "a" * 900, "in": "query", "schema": {"type": "array"}}),
        ("/", {"name": "é" * 900, "in": "query", "style": "deepObject"}),
        ("/", {"name": "a" * 900, "in": "cookie", "style": "form"}),
        ("/{;a}", {"name": "a", "in": "path", "style": "matrix", "explode": True}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_request_may_not_say_an_argument_without_end(path: str, said: Any) -> None:
    operation = read_document(dumped({"paths": {path: {"get": {"parameters": [said]}}}}), "t").operations
    (tool,) = operation.values()
    (name,) = tool.inputs.arguments[:1]
    values: Any = "v" * 100_000 if said["in"] == "path" else ["v"] * 100_000
    if said.get("style") == "deepObject":
        values = {str(number): "v" for number in range(15_000)}

    try:
        request = build_request(tool, {name: values}, BASE)
    except ArgumentError as problem:
        assert "more than 67,108,864 characters" in str(problem)  # noqa: PT017 (a short one is sent)
        assert problem.argument == name  # noqa: PT017
    else:
        assert len(request.url) < 2 * MIB


def test_a_form_may_not_say_a_name_without_end() -> None:
    form = {
        "application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {"n" * 2_000: {}}}}
    }
    tool = read_document(
        dumped({"paths": {"/": {"post": {"requestBody": {"content": form, "required": True}}}}}), "t"
    ).operations["post"]
    (name,) = tool.inputs.arguments
    with pytest.raises(ArgumentError, match="more than 67,108,864 characters"):
        build_request(tool, {name: ["v"] * 100_000}, BASE)
