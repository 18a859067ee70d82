"""Qualified URIs and templates: whose a URI is, and that nobody takes another's place by how it is spelled."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.rows import for_each

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.namespace import (
    AmbiguousName,
    MissingName,
    ResourceEntry,
    UriSpace,
    is_ours,
    qualified,
    resolve,
    unqualified,
)
from greenroom.config.model import ServerDefinition, Settings
from greenroom.protocol.safe_text import unhidden

EMPTY = UriSpace({}, {})


def entry(server: str, *uris: str, templates: tuple[str, ...] = (), **more: Any) -> ServerEntry:
    return ServerEntry(
        server,
        "h",
        tools=more.pop("tools", ()),
        resources=tuple({"uri": uri, "name": uri, "x-vendor": 1} for uri in uris),
        templates=tuple({"uriTemplate": uri, "name": uri} for uri in templates),
        **more,
    )


def space(*entries: ServerEntry, templates: bool = False) -> UriSpace:
    index = Index.build(
        {one.server: ServerDefinition(one.server, command="x") for one in entries},
        {one.server: one for one in entries},
        Settings(),
    )
    places = index.templates() if templates else index.resources()
    return UriSpace.of(replace(place, uri=unhidden(place.original)) for place in places)


@for_each(
    ("server", "uri", "spelled"),
    [
        ("a", "file:///x", "greenroom://a/file:///x"),
        ("a/b c", "x:1", "greenroom://a%2Fb%20c/x:1"),
        ("a", "ui://app/page", "ui://greenroom/a/app/page"),
        ("a/b", "ui://app", "ui://greenroom/a%2Fb/app"),
        ("a", "x:{y}/{+z}", "greenroom://a/x:{y}/{+z}"),
        ("a", "", "greenroom://a/"),
    ],
)
def test_a_qualified_uri_names_its_server_and_reads_backwards(server: str, uri: str, spelled: str) -> None:
    assert qualified(server, uri) == spelled
    assert is_ours(spelled)
    assert unqualified(spelled) == (server, uri)
    if spelled.startswith("ui:"):
        assert unqualified(f"UI://GreenRoom/{spelled[len('ui://greenroom/') :]}") == (server, uri)
    else:
        assert unqualified(f"GREENROOM://{spelled[len('greenroom://') :]}") == (server, uri)


@for_each("uri", ["x:1", "ui://app/x", "ui://greenrooms/a/x", "greenroom:/a/b", "agreenroom://a/b", ""])
def test_any_other_uri_is_not_ours(uri: str) -> None:
    assert not is_ours(uri)
    assert unqualified(uri) is None


@pytest.mark.parametrize("uri", ["greenroom://a", "ui://greenroom/a", "greenroom://"])
def test_ours_without_a_rest_is_of_no_server(uri: str) -> None:
    assert is_ours(uri)
    assert unqualified(uri) is None
    assert resolve(uri, {"a": None, "": None}, EMPTY, EMPTY) == MissingName(uri, ())


def test_what_is_read_is_what_the_server_calls_it() -> None:
    hidden = space(entry("a", "x:\u200b1", "x:2"))
    assert [(place.uri, place.original) for place in hidden.everything] == [
        ("x:1", "x:\u200b1"),
        ("x:2", "x:2"),
    ]
    found = resolve("x:1", {"a": None}, hidden, EMPTY)
    assert isinstance(found, ResourceEntry)
    assert found.original == "x:\u200b1"


def test_a_uri_of_two_is_shown_with_each_and_one_of_ours_is_never_contested() -> None:
    both = space(entry("b", "x:1", "greenroom://c/y", ""), entry("a", "x:1", "greenroom://c/y", "z:1"))
    assert list(both.contested) == ["x:1"]
    assert [place.server for place in both.contested["x:1"]] == ["a", "b"]
    assert [place.uri for place in both.everything] == [
        "greenroom://a/greenroom://c/y",
        "greenroom://a/x:1",
        "greenroom://b/greenroom://c/y",
        "greenroom://b/x:1",
        "z:1",
    ]
    assert [place.uri for place in both.of_server("b")] == [
        "greenroom://b/greenroom://c/y",
        "greenroom://b/x:1",
    ]
    servers = {"a": None, "b": None}
    assert resolve("x:1", servers, both, EMPTY) == AmbiguousName(
        "x:1", ("greenroom://a/x:1", "greenroom://b/x:1"), ("a", "b")
    )
    read = resolve("greenroom://b/x:1", servers, both, EMPTY)
    assert isinstance(read, ResourceEntry)
    assert (read.server, read.original, read.record["uri"]) == ("b", "x:1", "x:1")


def test_a_qualified_uri_is_of_its_server_whether_or_not_it_is_listed_and_only_if_there_is_one() -> None:
    read = resolve("greenroom://a/any:thing", {"a": None}, EMPTY, EMPTY)
    assert isinstance(read, ResourceEntry)
    assert (read.uri, read.server, read.original) == ("greenroom://a/any:thing", "a", "any:thing")
    assert resolve("greenroom://b/any:thing", {"a": None}, EMPTY, EMPTY) == MissingName(
        "greenroom://b/any:thing", ()
    )


@for_each(
    ("template", "fits", "others"),
    [
        ("x://fixed", ["x://fixed"], ["x://fixed/", "x://fixe", "ax://fixed"]),
        ("x://{a}", ["x://", "x://1/2"], ["y://1", "x:/1"]),
        ("{a}/end", ["/end", "b/end"], ["/ends", "end"]),
        ("x{a}y{b}z", ["xyz", "x1y2z", "xyyz"], ["xz", "xy", "x1z2y", "yxz"]),
        ("x{a}x", ["xx", "x1x"], ["x"]),
        ("a{x}b{y}b{z}c", ["abbc", "a1b2b3c"], ["abc", "a1b2c"]),
        ("a{x}bc{y}cd", ["abccd"], ["abcd"]),
    ],
)
def test_a_template_fits_what_has_its_fixed_parts_in_order(
    template: str, fits: list[str], others: list[str]
) -> None:
    templates = space(entry("a", templates=(template,)), templates=True)
    for uri in fits:
        found = resolve(uri, {"a": None}, EMPTY, templates)
        assert isinstance(found, ResourceEntry), uri
        assert (found.uri, found.server, found.original) == (uri, "a", uri)
    for uri in others:
        assert isinstance(resolve(uri, {"a": None}, EMPTY, templates), MissingName), uri


def test_templates_of_one_server_are_no_quarrel_and_those_of_two_are() -> None:
    servers = {"a": None, "b": None}
    one = space(entry("a", templates=("x:{a}", "x:{a}{b}")), templates=True)
    assert isinstance(resolve("x:1", servers, EMPTY, one), ResourceEntry)
    two = space(entry("b", templates=("x:{b}",)), entry("a", templates=("x:{a}",)), templates=True)
    assert resolve("x:1", servers, EMPTY, two) == AmbiguousName(
        "x:1", ("greenroom://a/x:1", "greenroom://b/x:1"), ("a", "b")
    )
    listed = space(entry("b", "x:1"))
    found = resolve("x:1", servers, listed, two)
    assert isinstance(found, ResourceEntry)
    assert found.server == "b", "what is listed is certain"


def test_what_nobody_lists_may_be_of_whoever_is_unknown_or_has_resources() -> None:
    servers = {
        "unknown": None,
        "not listed yet": entry("not listed yet", tools=None),
        "none": entry("none"),
        "some": entry("some", capabilities={"resources": {}}),
    }
    assert resolve("x:1", servers, EMPTY, EMPTY) == MissingName("x:1", ("unknown", "not listed yet", "some"))


# ---- in an index ----


def index_of(*entries: ServerEntry) -> Index:
    servers = {one.server: ServerDefinition(one.server, command="x") for one in entries}
    return Index.build(servers, {one.server: one for one in entries}, Settings())


def test_a_uri_of_one_server_passes_unchanged_with_its_record() -> None:
    index = index_of(entry("a", "x://1", "x://1"), entry("b", "x://2"))
    assert [place.uri for place in index.resources()] == ["x://1", "x://2"]
    assert [place.uri for place in index.resources("b")] == ["x://2"]
    assert index.resources()[0].record["x-vendor"] == 1
    found = index.resolve_uri("x://2")
    assert isinstance(found, ResourceEntry)
    assert (found.server, found.original) == ("b", "x://2")


def test_a_uri_that_looks_like_ours_is_known_by_the_server_that_lists_it() -> None:
    """Otherwise `a` could say what is read as `b`'s."""
    index = index_of(entry("a", "greenroom://b/x://1", "GREENROOM://b/y://1"), entry("b", "x://1"))
    assert [place.uri for place in index.resources("a")] == [
        "greenroom://a/GREENROOM://b/y://1",
        "greenroom://a/greenroom://b/x://1",
    ]
    found = index.resolve_uri("greenroom://b/x://1")
    assert isinstance(found, ResourceEntry)
    assert (found.server, found.original) == ("b", "x://1")
    found = index.resolve_uri("greenroom://a/greenroom://b/x://1")
    assert isinstance(found, ResourceEntry)
    assert (found.server, found.original) == ("a", "greenroom://b/x://1")


@given(st.text(min_size=1), st.text())
def test_a_qualified_uri_reads_backwards(server: str, uri: str) -> None:
    try:
        server.encode()
    except UnicodeEncodeError:
        return
    assert unqualified(qualified(server, uri)) == (server, uri)


def test_a_hostile_template_costs_linear_time() -> None:
    index = index_of(entry("a", templates=("x" + "{a}x" * 500 + "y",)))
    begun = time.process_time()
    assert isinstance(index.resolve_uri("x" * 100_000), MissingName)
    assert time.process_time() - begun < 1
