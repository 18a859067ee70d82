"""Which operations become tools."""

from __future__ import annotations

import json

from tests.support.rows import for_each

from greenroom.openapi.document import read_document
from greenroom.openapi.filters import Selection, chosen, unmatched

PATHS = {
    "/pets": {
        "get": {"operationId": "list-pets", "tags": ["pets"]},
        "post": {"operationId": "addPet", "tags": ["pets", "write"]},
    },
    "/pets/{id}": {"delete": {"tags": ["write"]}},
    "/users": {"get": {"operationId": "users/list"}},
}
OPERATIONS = read_document(json.dumps({"openapi": "3.1.0", "paths": PATHS}).encode(), "t.json").operations
ALL = ["list-pets", "addPet", "delete_pets_id", "users_list"]


@for_each(
    ("include", "exclude", "names"),
    [
        ({}, {}, ALL),
        ({"tags": ["pets"]}, {}, ["list-pets", "addPet"]),
        ({"tags": ["pets"]}, {"tags": ["write"]}, ["list-pets"]),
        ({}, {"tags": ["write"]}, ["list-pets", "users_list"]),
        ({"operations": ["list*", "users/*"]}, {}, ["list-pets", "users_list"]),
        ({"operations": ["users_list", "list_pets"]}, {}, ["list-pets", "users_list"]),
        ({"paths": ["/pets*"]}, {}, ["list-pets", "addPet", "delete_pets_id"]),
        ({"paths": ["/pets"]}, {}, ["list-pets", "addPet"]),
        ({"paths": ["GET *"]}, {}, ["list-pets", "users_list"]),
        (
            {"paths": ["DELETE /pets/{id}"], "tags": ["pets"]},
            {"operations": ["addPet"]},
            ["list-pets", "delete_pets_id"],
        ),
        ({"tags": ["gone"]}, {}, []),
        ({}, {"paths": ["*"]}, []),
    ],
)
def test_include_and_exclude(
    include: dict[str, list[str]], exclude: dict[str, list[str]], names: list[str]
) -> None:
    given = [Selection(**{name: tuple(each) for name, each in said.items()}) for said in (include, exclude)]
    assert [*chosen(OPERATIONS, *given)] == names


def test_patterns_that_fit_nothing_are_told() -> None:
    selection = Selection(tags=("pets", "gone"), operations=("add*", "ad"), paths=("POST /users", "/users"))
    assert unmatched(OPERATIONS, selection) == ["gone", "ad", "POST /users"]
