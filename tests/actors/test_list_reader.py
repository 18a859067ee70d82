"""The lists of a server, page by page, against a peer that answers what the test says: every end and every bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import pytest
from tests.support import run_virtual
from tests.support.timers import timers_at_work

from greenroom.actors.backend import current_backend
from greenroom.actors.handshake import RpcFailure
from greenroom.actors.list_reader import list_all
from greenroom.actors.peer import Exchange, Handshake, Listing
from greenroom.catalogue.fingerprints import fingerprint
from greenroom.config.model import Pinning, Settings
from greenroom.protocol import bounds
from greenroom.protocol.jsonrpc.terms import RpcError

ALL = ("tools", "resources", "prompts")
KEYS = {"tools": "name", "resources": "uri", "resourceTemplates": "uriTemplate", "prompts": "name"}
FIELDS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}

Answer = Callable[[str, "str | None"], Any]  # of the method and the cursor


class Answering:
    """A peer. What `answer` gives is the result, or a time that passes and the result; an exception's text is an error
    of the server's. `asked`: each method with its cursor and when."""

    def __init__(self, tasks: anyio.abc.TaskGroup, answer: Answer) -> None:
        self.asked: list[tuple[str, str | None, float]] = []
        self.left: list[tuple[str, str]] = []
        self._tasks, self._answer = tasks, answer

    def request(self, exchange: Exchange) -> None:
        cursor = (exchange.params or {}).get("cursor")
        self.asked.append((exchange.method, cursor, anyio.current_time()))
        self._tasks.start_soon(self._end, exchange, self._answer(exchange.method, cursor))

    async def _end(self, exchange: Exchange, said: Any) -> None:
        if isinstance(said, tuple):
            seconds, said = cast("tuple[float, Any]", said)
            await anyio.sleep(seconds)
        if isinstance(said, Exception):
            exchange.owner.exchange_ended(
                exchange, None, RpcError(-32601 if isinstance(said, LookupError) else -32000, str(said))
            )
        else:
            exchange.owner.exchange_ended(
                exchange, said if isinstance(said, bytes) else json.dumps(said).encode(), None
            )

    def abandon(self, exchange: Exchange, reason: str) -> None:
        self.left.append((exchange.method, reason))


def listed(
    backend: str, answer: Answer, *declared: str, **settings: Any
) -> tuple[Listing | RpcFailure, Answering]:
    capabilities: Mapping[str, Any] = {name: {} for name in declared}
    found: list[Any] = []

    async def main() -> None:
        async with timers_at_work() as timers, anyio.create_task_group() as tasks:
            peer: Any = Answering(tasks, answer)
            found.append(peer)
            try:
                handshake = Handshake("2025-11-25", dict(capabilities), {})
                found.append(await list_all(peer, current_backend(), timers, handshake, Settings(**settings)))
            except RpcFailure as failure:
                found.append(failure)
            except BaseExceptionGroup as group:  # a bug
                raise AssertionError(repr(group.exceptions)) from group
            tasks.cancel_scope.cancel()

    run_virtual(backend, main)
    return found[1], found[0]


def page(method: str, *names: str, **more: Any) -> dict[str, Any]:
    field = FIELDS[method]
    return {field: [{KEYS[field]: name} for name in names], **more}


def test_each_kind_that_is_declared_is_asked_for_and_no_other(backend: str) -> None:
    for declared, methods in (
        (ALL, list(FIELDS)),
        (("tools",), ["tools/list"]),
        (("resources",), ["resources/list", "resources/templates/list"]),
        (("prompts",), ["prompts/list"]),
        ((), []),
    ):
        listing, peer = listed(backend, lambda method, _: page(method, "a", "b"), *declared)
        assert isinstance(listing, Listing)
        assert sorted(method for method, _, _ in peer.asked) == sorted(methods)
        got = (listing.tools, listing.resources, listing.templates, listing.prompts)
        for found, (method, field) in zip(got, FIELDS.items(), strict=True):
            assert found == (({KEYS[field]: "a"}, {KEYS[field]: "b"}) if method in methods else None)
        assert listing.problems == ()


def test_pages_are_followed_to_their_end(backend: str) -> None:
    pages = {None: ("a", "1"), "1": ("b", "2"), "2": ("c", "")}

    def answer(method: str, cursor: str | None) -> Any:
        name, following = pages[cursor]
        return page(method, name, nextCursor=following)

    listing, peer = listed(backend, answer, "tools")
    assert isinstance(listing, Listing)
    assert listing.tools == ({"name": "a"}, {"name": "b"}, {"name": "c"})
    assert [cursor for _, cursor, _ in peer.asked] == [None, "1", "2"]
    assert listing.problems == ()


LONG = "c" * bounds.NAME_CHARACTERS
MANY_PARTS = b'{"name":"a","x":[[]%b]}' % (b",[]" * (bounds.ITEM_PARTS - 3))  # as many as an item may have
TOO_MANY_BYTES = (
    "a page of 42 bytes, and what comes after it, is left out: all lists of one server may have 83 bytes "
    "(maxListBytes)"
)
TOO_MANY_ITEMS = "the rest is left out: all lists of one server may have 1 items (maxListItems)"
ENDS: dict[str, tuple[Answer, dict[str, Any], int, tuple[str, ...]]] = {
    # what is answered, the settings; how many tools there are then, and what is told
    "a cursor that comes back": (
        lambda method, cursor: page(method, "a", nextCursor={None: "x" * 50, "x" * 50: "y"}.get(cursor, "x" * 50)),
        {},
        3,
        (f"the server repeats its cursor {'x' * 40!r}; what came until then is kept",),
    ),
    "no end": (
        lambda method, cursor: page(method, "a", nextCursor=f"{cursor}+"),
        {"max_pages": 4},
        4,
        ("cut after 4 pages",),
    ),
    "an end at the last page": (
        lambda method, cursor: page(method, "a", nextCursor=f"{cursor}+" if len(cursor or "") < 7 else None),
        {"max_pages": 4},
        4,
        (),
    ),
    "a number as a cursor": (
        lambda method, _: page(method, "a", nextCursor=7),
        {},
        1,
        ("its nextCursor is not a string; what came until then is kept",),
    ),
    "a long cursor": (
        lambda method, cursor: page(method, "a", nextCursor=LONG if cursor is None else LONG + "c"),
        {},
        2,
        ("its nextCursor is too long; what came until then is kept",),
    ),
    "too many items": (
        lambda method, cursor: page(method, "a", "b", nextCursor=f"{cursor}+"),
        {"max_list_items": 5},
        5,
        ("the rest is left out: all lists of one server may have 5 items (maxListItems)",),
    ),
    "as many items as there may be": (
        lambda method, cursor: page(method, "a", "b", nextCursor="n" if cursor is None else None),
        {"max_list_items": 4},
        4,
        (),
    ),
    "broken items, which count": (
        lambda method, _: {"tools": [{"name": "a"}, {}, {}, {"name": "b"}]},
        {"max_list_items": 3},
        1,
        (
            '2 items without a "name" were left out',
            "the rest is left out: all lists of one server may have 3 items (maxListItems)",
        ),
    ),
    "broken items on another page, which count": (
        lambda method, cursor: page(method, "a", "b") if cursor else {"tools": [{}, {}], "nextCursor": "n"},
        {"max_list_items": 3},
        1,
        (
            '2 items without a "name" were left out',
            "the rest is left out: all lists of one server may have 3 items (maxListItems)",
        ),
    ),
    "as many bytes as there may be": (
        lambda method, cursor: b'{"tools":[{"name":"a"}],"nextCursor":%b}' % (b"null" if cursor else b'"xx"'),
        {"max_list_bytes": 84},
        2,
        (),
    ),
    "a page of too many bytes": (
        lambda method, cursor: b'{"tools":[{"name":"a"}],"nextCursor":%b}' % (b"null" if cursor else b'"xx"'),
        {"max_list_bytes": 83},
        1,
        (TOO_MANY_BYTES,),
    ),
    "too many objects and arrays": (
        lambda method, cursor: b'{"tools":[%b],"nextCursor":"%b+"}' % (MANY_PARTS, (cursor or "").encode()),
        {},
        bounds.LIST_PARTS // bounds.ITEM_PARTS,
        ("the rest is left out: all lists of one server may have 200,000 objects and arrays",),
    ),
    "the same fault on each page": (
        lambda method, cursor: {"tools": [{}], "nextCursor": f"{cursor}+"},
        {"max_pages": 3},
        0,
        ('an item without a "name" was left out', "cut after 3 pages"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_a_list_ends_where_the_server_says_or_at_a_bound_and_says_which(name: str) -> None:
    answer, settings, count, problems = ENDS[name]
    listing, _ = listed("trio", answer, "tools", **settings)
    assert isinstance(listing, Listing)
    assert listing.tools is not None
    assert len(listing.tools) == count
    assert listing.problems == tuple(f"tools/list: {problem}" for problem in problems)


def test_what_is_told_of_one_list_is_bounded() -> None:
    def answer(method: str, cursor: str | None) -> Any:
        at = int(cursor or 0)
        return {"tools": [{}] * (at + 1), "nextCursor": str(at + 1)}

    listing, _ = listed("trio", answer, "tools", max_pages=bounds.PROBLEMS + 5)
    assert isinstance(listing, Listing)
    assert len(listing.problems) == bounds.PROBLEMS
    assert listing.problems[-1] == f'tools/list: {bounds.PROBLEMS} items without a "name" were left out'


def test_without_its_tools_a_server_is_nothing_and_any_other_list_may_fail(backend: str) -> None:
    def answer(failing: str, said: Any) -> Answer:
        return lambda method, _: said if method == failing else page(method, "a")

    for said, words in (
        (ValueError("broken"), "broken (-32000)"),
        ({"x": []}, 'the result has no array "{}"'),
        ((99.0, {}), "no answer within 7 s"),
    ):
        for failing in FIELDS:
            listing, peer = listed(backend, answer(failing, said), *ALL, connect_timeout=7.0)
            expected = words.format(FIELDS[failing])
            if failing == "tools/list":
                assert isinstance(listing, RpcFailure)
                assert expected in str(listing)
            else:
                assert isinstance(listing, Listing)
                assert expected in " ".join(listing.problems)
                assert len(listing.problems) == 1
                got = (listing.tools, listing.resources, listing.templates, listing.prompts)
                assert [found is None for found in got] == [method == failing for method in FIELDS]
            assert peer.left == ([(failing, "timed out")] if isinstance(said, tuple) else [])


def test_what_a_server_simply_lacks_is_an_empty_list_and_no_problem(backend: str) -> None:
    def answer(method: str, cursor: str | None) -> Any:
        lacks = method in ("resources/templates/list", "prompts/list")
        return LookupError("Method not found") if lacks else page(method, "a")

    listing, _ = listed(backend, answer, "tools", "resources", "prompts")
    assert isinstance(listing, Listing)
    assert (listing.templates, listing.prompts, listing.problems) == ((), (), ())

    failure, _ = listed(backend, lambda _method, _cursor: LookupError("Method not found"), "tools")
    assert isinstance(failure, RpcFailure)
    assert "Method not found" not in str(failure)
    assert "does not know this method" in str(failure)


def test_tools_come_first_whoever_is_quicker_and_all_pages_share_one_deadline(backend: str) -> None:
    listing, _ = listed(
        backend,
        lambda method, _: (3.0, page(method, "a")) if method == "tools/list" else page(method, "a", "b"),
        "tools", "prompts", max_list_items=1,
    )  # fmt: skip
    assert isinstance(listing, Listing)
    assert (listing.tools, listing.prompts) == (({"name": "a"},), ())
    assert listing.problems == (f"prompts/list: {TOO_MANY_ITEMS}",)

    def slow(method: str, cursor: str | None) -> Any:
        return page(method, "a", nextCursor="n") if cursor is None else (6.0, page(method, "b"))

    listing, peer = listed(backend, slow, "tools", connect_timeout=5.0)
    assert isinstance(listing, RpcFailure)
    assert str(listing).endswith("no answer within 5 s")
    assert peer.left == [("tools/list", "timed out")]


def test_a_page_that_does_not_come_is_said_with_the_time_that_all_of_them_had(backend: str) -> None:
    def answer(method: str, cursor: str | None) -> Any:
        return (2.0, page(method, "a", nextCursor=f"{cursor}+"))

    failure, peer = listed(backend, answer, "tools", connect_timeout=5.0)
    assert isinstance(failure, RpcFailure)
    assert str(failure) == "tools/list: no answer within 5 s"
    assert (failure.timed_out, len(peer.asked)) == (True, 3)
    assert peer.left == [("tools/list", "timed out")]


@pytest.mark.parametrize("pinning", list(Pinning))
def test_each_tool_is_pinned_once_as_it_was_listed_first(backend: str, pinning: Pinning) -> None:
    tools = [{"name": "a", "description": "first"}, {"name": "b"}, {"name": "a", "description": "second"}]
    listing, _ = listed(backend, lambda *_: {"tools": tools}, "tools", pinning=pinning)
    assert isinstance(listing, Listing)
    assert listing.tools == tuple(tools)
    pins = ("", "") if pinning is Pinning.OFF else (fingerprint(tools[0]), fingerprint(tools[1]))
    assert listing.prints == dict(zip("ab", pins, strict=True))
    assert list(listing.prints) == ["a", "b"]
