"""URIs of a room: unchanged while they are one server's, told apart when they are not, found by their templates."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.namespace import Ambiguous, Missing, Place, qualified, unqualified
from greenroom.config.model import ServerDefinition, Settings


def entry(server: str, resources: tuple[str, ...] = (), templates: tuple[str, ...] = ()) -> ServerEntry:
    return ServerEntry(
        server,
        "hash",
        tools=(),
        resources=tuple({"uri": uri, "name": uri, "x-vendor": 1} for uri in resources),
        templates=tuple({"uriTemplate": uri, "name": uri} for uri in templates),
        capabilities={"resources": {}} if resources or templates else {},
    )


def index_of(*entries: ServerEntry | None, names: tuple[str, ...] = (), **more: bool) -> Index:
    known = {each.server: each for each in entries if each is not None}
    names = names or tuple(known)
    servers = {name: ServerDefinition(name, command="x", **more) for name in names}  # pyright: ignore[reportArgumentType]
    return Index.build(servers, {name: known.get(name) for name in names}, Settings())


def test_a_uri_of_one_server_passes_unchanged_with_its_record() -> None:
    index = index_of(entry("a", ("x://1", "x://1")), entry("b", ("x://2",)))
    assert [place.uri for place in index.resources()] == ["x://1", "x://2"]
    assert [place.uri for place in index.resources("b")] == ["x://2"]
    assert index.resources()[0].record["x-vendor"] == 1
    found = index.resolve_uri("x://2")
    assert isinstance(found, Place)
    assert (found.server, found.original) == ("b", "x://2")


def test_a_uri_that_looks_like_ours_is_known_by_the_server_that_lists_it() -> None:
    """Otherwise `a` could say what is read as `b`'s."""
    index = index_of(entry("a", ("greenroom://b/x://1", "GREENROOM://b/y://1")), entry("b", ("x://1",)))
    assert [place.uri for place in index.resources("a")] == [
        "greenroom://a/GREENROOM://b/y://1",
        "greenroom://a/greenroom://b/x://1",
    ]
    found = index.resolve_uri("greenroom://b/x://1")
    assert isinstance(found, Place)
    assert (found.server, found.original) == ("b", "x://1")
    found = index.resolve_uri("greenroom://a/greenroom://b/x://1")
    assert isinstance(found, Place)
    assert (found.server, found.original) == ("a", "greenroom://b/x://1")


def test_a_uri_of_two_servers_is_nobodys_whatever_their_order() -> None:
    one, two = entry("a", ("x://1",)), entry("b/c", ("x://1",))
    for index in (index_of(one, two), index_of(two, one)):
        assert [place.uri for place in index.resources()] == [
            "greenroom://a/x://1",
            "greenroom://b%2Fc/x://1",
        ]
        found = index.resolve_uri("x://1")
        assert isinstance(found, Ambiguous)
        assert found.servers == ("a", "b/c")
        for candidate, server in zip(found.candidates, found.servers, strict=True):
            place = index.resolve_uri(candidate)
            assert isinstance(place, Place)
            assert (place.server, place.original) == (server, "x://1")


def test_a_template_says_whose_a_uri_is() -> None:
    index = index_of(
        entry("a", templates=("a://{id}/end", "both://{x}")),
        entry("b", templates=("b://{+path}{?q}", "both://{y}")),
    )
    for uri, server in (("a://7/end", "a"), ("b://x/y/z?q=1", "b")):
        found = index.resolve_uri(uri)
        assert isinstance(found, Place)
        assert (found.server, found.original) == (server, uri)
    assert isinstance(index.resolve_uri("a://7/begin"), Missing)
    both = index.resolve_uri("both://1")
    assert isinstance(both, Ambiguous)
    assert both.candidates == ("greenroom://a/both://1", "greenroom://b/both://1")


def test_what_nobody_lists_names_those_that_may_have_it() -> None:
    index = index_of(entry("none"), entry("some", ("x://1",)), names=("none", "some", "unknown"))
    found = index.resolve_uri("y://1")
    assert isinstance(found, Missing)
    assert found.servers == ("some", "unknown")


def test_hidden_resources_are_not_there() -> None:
    index = index_of(entry("a", ("x://1",), ("y://{z}",)), expose_resources=False)
    assert index.resources() == ()
    assert index.templates() == ()


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
    assert isinstance(index.resolve_uri("x" * 100_000), Missing)
    assert time.process_time() - begun < 1
