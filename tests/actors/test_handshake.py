"""Both eras, hints that prove wrong, and lists that misbehave: against real servers."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, run_virtual
from tests.support.stdio import CLIENT, Link, definition_of, linked

from greenroom.actors.backend import Backend, current_backend
from greenroom.actors.handshake import RpcFailure, shake_hands
from greenroom.actors.host import Greeting
from greenroom.actors.lists import list_all
from greenroom.actors.peer import Exchange, Handshake, Listing
from greenroom.config.model import Era, Settings
from greenroom.protocol import bounds
from greenroom.protocol.jsonrpc.terms import RpcError

SETTINGS = Settings(probe_timeout=20.0, connect_timeout=60.0)


async def _greet(link: Link, hint: str | None = None, settings: Settings = SETTINGS) -> Handshake:
    return await shake_hands(
        link.peer, link.backend, settings=settings, client_info=CLIENT, greeting=Greeting(), era_hint=hint
    )


@pytest.mark.parametrize("hint", [None, "2025-06-18", "2026-07-28", "1999-01-01"])
@in_real_time
async def test_a_handshake_server_is_met_whatever_the_hint(hint: str | None) -> None:
    async with linked(definition_of("faulty.py")) as link:
        handshake = await _greet(link, hint)
        assert handshake.protocol_version == link.peer.protocol_version == "2025-11-25"
        assert handshake.server_info == {"name": "faulty", "version": "1"}
        assert handshake.instructions == "Ask for trouble."


@pytest.mark.parametrize("hint", [None, "2025-06-18", "2026-07-28"])
@in_real_time
async def test_a_modern_server_is_met_whatever_the_hint(hint: str | None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with linked(definition_of("faulty.py", "--discover", "--log", str(log))) as link:
        handshake = await _greet(link, hint)
        assert handshake.protocol_version == link.peer.protocol_version == "2026-07-28"
        assert handshake.server_info == {"name": "faulty", "version": "1"}
        assert ("got initialize" in log.read_text()) is (hint == "2025-06-18")


@in_real_time
async def test_a_right_hint_saves_the_probe(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with linked(definition_of("faulty.py", "--log", str(log))) as link:
        await _greet(link, "2025-06-18")
        assert "server/discover" not in log.read_text()


@in_real_time
async def test_a_server_silent_on_the_probe_costs_the_probe_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    faults = ("--hang-at", "server/discover", "--log", str(log))
    async with linked(definition_of("faulty.py", *faults)) as link:
        start = time.perf_counter()
        handshake = await _greet(link, settings=Settings(probe_timeout=0.2))
        assert time.perf_counter() - start < 15.0
        assert handshake.protocol_version == "2025-11-25"
        assert "cancelled" not in log.read_text()  # the negotiation may not be cancelled


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
@in_real_time
async def test_every_handshake_version_is_taken(version: str) -> None:
    async with linked(definition_of("faulty.py", "--version", version)) as link:
        assert (await _greet(link)).protocol_version == version


@in_real_time
async def test_an_unknown_version_is_a_clear_error() -> None:
    async with linked(definition_of("faulty.py", "--version", "2099-01-01")) as link:
        with pytest.raises(RpcFailure, match=r"'2099-01-01'; Greenroom knows 2024-11-05, .*2026-07-28"):
            await _greet(link)


async def _list(link: Link, settings: Settings = SETTINGS) -> Listing:
    return await list_all(link.peer, link.backend, await _greet(link, "2025-11-25"), settings)


def _names(listing: Listing) -> list[str]:
    assert listing.tools is not None
    return [tool["name"] for tool in listing.tools]


@in_real_time
async def test_lists_keep_every_field_and_only_declared_kinds_are_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with linked(definition_of("faulty.py", "--log", str(log))) as link:
        listing = await _list(link)
        assert listing.tools is not None
        assert listing.tools[0]["x-vendor"] == {"kept": True}
        assert listing.resources is listing.templates is listing.prompts is None
        assert listing.problems == ()
        assert "resources/list" not in log.read_text()


@in_real_time
async def test_all_four_lists() -> None:
    async with linked(definition_of("faulty.py", "--kinds", "tools,resources,prompts")) as link:
        listing = await _list(link)
        assert listing.resources == ({"uri": "note://one", "name": "one"},)
        assert listing.templates == ({"uriTemplate": "note://{id}", "name": "note"},)
        assert listing.prompts == ({"name": "greet"},)


@in_real_time
async def test_pages_are_followed_up_to_the_cap() -> None:
    async with linked(definition_of("faulty.py", "--pages", "5")) as link:
        assert _names(await _list(link)) == [f"tool_{at}" for at in range(5)]
        cut = await list_all(link.peer, link.backend, await _greet(link), Settings(max_pages=3))
        assert _names(cut) == ["tool_0", "tool_1", "tool_2"]
        assert cut.problems == ("tools/list: cut after 3 pages",)


@in_real_time
async def test_a_repeated_cursor_ends_the_list() -> None:
    async with linked(definition_of("faulty.py", "--loop")) as link:
        listing = await _list(link)
        assert len(_names(listing)) == 2
        assert "repeats its cursor 'again'" in listing.problems[0]


@in_real_time
async def test_a_broken_tool_costs_only_itself() -> None:
    async with linked(definition_of("faulty.py", "--bad-tools")) as link:
        listing = await _list(link)
        assert "echo" in _names(listing)
        assert listing.problems == ('tools/list: 3 items without a "name" were left out',)


@in_real_time
async def test_a_failed_tools_list_fails_and_another_one_is_unknown() -> None:
    kinds = ("--kinds", "tools,resources,prompts")
    async with linked(definition_of("faulty.py", *kinds, "--fail-list", "prompts/list")) as link:
        listing = await _list(link)
        assert listing.prompts is None
        assert listing.resources is not None
        assert listing.problems == ("prompts/list: this list is out of order (-32603)",)
    async with linked(definition_of("faulty.py", *kinds, "--fail-list", "tools/list")) as link:
        with pytest.raises(RpcFailure, match="tools/list: this list is out of order"):
            await _list(link)


# ---- in virtual time: who waits for how long ----------------------------------------------------------------------

Answer = tuple[float, Any] | None  # after so many seconds; None: never


class Paced:
    """A peer whose far end answers by the clock. `heard`: what it was asked, and when; `left`: what was abandoned."""

    def __init__(
        self, loop_backend: Backend, tasks: anyio.abc.TaskGroup, answer: Callable[[Exchange], Answer]
    ) -> None:
        self.last_heard = 0.0
        self.protocol_version: str | None = None
        self.beside: str | None = None
        self.may_speak_both = False
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self.heard: list[tuple[float, str, str | None]] = []
        self.left: list[str] = []
        self.told: list[str] = []
        self._backend, self._tasks, self._answer = loop_backend, tasks, answer

    def request(self, exchange: Exchange) -> None:
        self.heard.append((round(self._backend.now(), 3), exchange.method, self.protocol_version))
        self._tasks.start_soon(self._run, exchange, self._answer(exchange))

    async def _run(self, exchange: Exchange, answer: Answer) -> None:
        if answer is not None:
            await anyio.sleep(answer[0])
            error = answer[1] if isinstance(answer[1], RpcError) else None
            exchange.owner.exchange_ended(exchange, None if error else json.dumps(answer[1]).encode(), error)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        self.left.append(exchange.method)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.told.append(f"{method} {self.protocol_version}")

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        raise NotImplementedError


WELCOME = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "p"}}


async def _meet(peer: Paced, settings: Settings, hint: str | None = None) -> Handshake:
    return await shake_hands(
        peer,
        peer._backend,
        settings=settings,
        client_info=CLIENT,
        greeting=Greeting({"roots": {}}),
        era_hint=hint,
    )


def _paced(
    backend: str, answer: Callable[[Exchange], Answer], body: Callable[[Paced], Awaitable[None]]
) -> Paced:
    peers: list[Paced] = []

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            peers.append(Paced(current_backend(), tasks, answer))
            with anyio.fail_after(3600):
                await body(peers[0])
            tasks.cancel_scope.cancel()

    run_virtual(backend, main)
    return peers[0]


def test_initialize_has_a_second_even_when_the_probe_used_everything_up(backend: str) -> None:
    async def body(peer: Paced) -> None:
        handshake = await _meet(peer, Settings(probe_timeout=2.0, connect_timeout=2.0))
        assert handshake.protocol_version == peer.protocol_version == "2025-11-25"

    peer = _paced(backend, lambda asked: (0.9, WELCOME) if asked.method == "initialize" else None, body)

    assert peer.heard == [(0.0, "server/discover", "2026-07-28"), (2.0, "initialize", None)]
    assert peer.left == ["server/discover"]
    assert peer.told == ["notifications/initialized 2025-11-25"], "from here on as was agreed"


@pytest.mark.parametrize(
    ("hint", "probe", "gives_up"), [(None, 2.0, 2.0), ("2026-07-28", 2.0, 5.0), ("2026-07-28", 8.0, 8.0)]
)
def test_a_server_of_the_newer_era_last_time_is_given_longer(
    backend: str, hint: str | None, probe: float, gives_up: float
) -> None:
    async def body(peer: Paced) -> None:
        await _meet(peer, Settings(probe_timeout=probe, connect_timeout=10.0), hint)

    peer = _paced(backend, lambda asked: (0.0, WELCOME) if asked.method == "initialize" else None, body)

    assert [at for at, _, _ in peer.heard] == [0.0, gives_up]


def test_what_is_left_of_the_connect_time_is_all_that_initialize_gets(backend: str) -> None:
    async def body(peer: Paced) -> None:
        with pytest.raises(RpcFailure, match="initialize: no answer within 3s") as caught:
            await _meet(peer, Settings(probe_timeout=2.0, connect_timeout=5.0))
        assert caught.value.timed_out

    peer = _paced(backend, lambda asked: None, body)

    assert peer.left == ["server/discover", "initialize"]  # no third try: it said nothing at all


def test_versions_in_common_are_found_in_the_refusal(backend: str) -> None:
    refused = RpcError(-32022, "no", {"supported": ["2025-06-18", "2099-01-01"]})

    def old(asked: Exchange) -> Answer:
        return (0.0, refused) if asked.method == "server/discover" else (0.0, WELCOME)

    async def falls_back(peer: Paced) -> None:
        assert (await _meet(peer, Settings())).protocol_version == "2025-11-25"

    _paced(backend, old, falls_back)

    async def gives_up(peer: Paced) -> None:
        with pytest.raises(RpcFailure, match="speaks protocol version 2099-01-01; Greenroom knows"):
            await _meet(peer, Settings())
        assert peer.protocol_version is None

    strange = RpcError(-32022, "no", {"supported": ["2099-01-01", 7]})
    _paced(backend, lambda asked: (0.0, strange), gives_up)


def test_who_we_are_is_said_to_both_eras(backend: str) -> None:
    seen: list[Exchange] = []

    def answer(asked: Exchange) -> Answer:
        seen.append(asked)
        return (0.0, WELCOME) if asked.method == "initialize" else (0.0, RpcError(-32601, "no"))

    async def body(peer: Paced) -> None:
        handshake = await _meet(peer, Settings())
        assert (peer.client_info, peer.client_capabilities) == (CLIENT, {"roots": {}})
        assert handshake.server_info == {"name": "p"}
        assert handshake.instructions is None

    _paced(backend, answer, body)

    assert seen[1].params == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": CLIENT,
    }


def test_what_a_server_says_of_itself_has_bounds(backend: str) -> None:
    deep: Any = {}
    for _ in range(bounds.DEPTH):
        deep = {"x": deep}
    answers: list[tuple[dict[str, Any] | RpcError, str]] = [
        ({**WELCOME, "instructions": "x" * bounds.ITEM_BYTES}, "longer than 2,097,152 bytes"),
        ({**WELCOME, "capabilities": deep}, "nested deeper than 100"),
        ({**WELCOME, "serverInfo": {"x": [[]] * bounds.ITEM_PARTS}}, "of more than 20,000 parts"),
        (RpcError(-32603, "no! " * 1_000_000), "no! … (-32603)"),
        (RpcError(-32603, "x" * 2_001), f"initialize: {'x' * 2_000}… (-32603)"),
        (RpcError(-32603, "x" * 2_000), f"initialize: {'x' * 2_000} (-32603)"),
        (RpcError(-32603, "x" * 2_001, fault=True), f"initialize: {'x' * 2_000}…"),
    ]
    for answer, why in answers:

        async def body(peer: Paced, why: str = why) -> None:
            with pytest.raises(RpcFailure) as failure:
                await _meet(peer, Settings())
            assert why in str(failure.value)
            assert len(str(failure.value)) < 2_100

        def said(asked: Exchange, answer: dict[str, Any] | RpcError = answer) -> Answer:
            return (0.0, answer) if asked.method == "initialize" else (0.0, RpcError(-32601, "no"))

        _paced(backend, said, body)


DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
NO = RpcError(-32601, "no")
BROKEN = RpcError(-32000, "no JSON-RPC", fault=True)
FIRST, THEN = "initialize", "server/discover"


@pytest.mark.parametrize(
    ("how", "answers", "asked", "met"),
    [
        ({}, {THEN: DISCOVERED}, [THEN], ("2026-07-28", True)),
        ({}, {THEN: NO, FIRST: WELCOME}, [THEN, FIRST], ("2025-11-25", True)),
        # Somebody waits to be asked: how it was met is our choice, unless it has no other.
        ({"by_handshake": True}, {FIRST: WELCOME}, [FIRST], ("2025-11-25", False)),
        ({"by_handshake": True}, {FIRST: NO, THEN: DISCOVERED}, [FIRST, THEN], ("2026-07-28", True)),
        ({"by_handshake": True, "era_hint": "2026-07-28"}, {FIRST: WELCOME}, [FIRST], ("2025-11-25", False)),
        ({"era_hint": "2025-06-18"}, {FIRST: WELCOME}, [FIRST], ("2025-11-25", True)),
        ({"era_hint": "2025-06-18"}, {FIRST: NO, THEN: DISCOVERED}, [FIRST, THEN], ("2026-07-28", True)),
        ({"era_hint": "2025-06-18"}, {FIRST: NO, THEN: NO}, [FIRST, THEN], "initialize: no (-32601)"),
        ({"era_hint": "2025-06-18"}, {FIRST: BROKEN, THEN: DISCOVERED}, [FIRST], "initialize: no JSON-RPC"),
        ({"era_hint": "2025-06-18"}, {THEN: DISCOVERED}, [FIRST], "initialize: no answer within 30s"),
        ({"era": Era.HANDSHAKE}, {FIRST: WELCOME}, [FIRST], ("2025-11-25", False)),
        ({"era": Era.HANDSHAKE}, {FIRST: NO, THEN: DISCOVERED}, [FIRST], '"era": "handshake": try "auto"'),
        (
            {"era": Era.STATELESS, "by_handshake": True},
            {THEN: DISCOVERED, FIRST: WELCOME},
            [THEN],
            ("2026-07-28", False),
        ),
        ({"era": Era.STATELESS}, {THEN: NO, FIRST: WELCOME}, [THEN], 'no proof that it speaks 2026-07-28; its'),
    ],
)  # fmt: skip
def test_who_is_greeted_how(
    backend: str, how: dict[str, Any], answers: dict[str, Any], asked: list[str], met: tuple[str, bool] | str
) -> None:
    async def body(peer: Paced) -> None:
        wanted = dict(how)
        greeting = Greeting({}, by_handshake=wanted.pop("by_handshake", False))
        meeting = shake_hands(
            peer, peer._backend, settings=Settings(), client_info=CLIENT, greeting=greeting, **wanted
        )
        if isinstance(met, str):
            with pytest.raises(RpcFailure) as caught:
                await meeting
            assert met in str(caught.value)
            return
        handshake = await meeting
        assert (handshake.protocol_version, handshake.is_its_choice) == met
        assert peer.protocol_version == met[0]

    def answer(exchange: Exchange) -> Answer:
        return (0.0, answers[exchange.method]) if exchange.method in answers else None

    assert [method for _, method, _ in _paced(backend, answer, body).heard] == asked


def test_a_deadline_counts_from_when_the_server_was_started(backend: str) -> None:
    async def body(peer: Paced) -> None:
        await anyio.sleep(20.0)
        with pytest.raises(RpcFailure, match="initialize: no answer within 8s"):
            await shake_hands(
                peer,
                peer._backend,
                settings=Settings(probe_timeout=2.0),
                client_info=CLIENT,
                greeting=Greeting(),
                deadline=30.0,
            )
        assert anyio.current_time() == pytest.approx(30.0)

    _paced(backend, lambda asked: None, body)


def test_a_probe_has_no_more_than_is_left(backend: str) -> None:
    async def body(peer: Paced) -> None:
        with pytest.raises(RpcFailure):
            await _meet(peer, Settings(probe_timeout=8.0, connect_timeout=3.0))

    peer = _paced(backend, lambda asked: None, body)
    assert peer.heard == [(0.0, "server/discover", "2026-07-28"), (3.0, "initialize", None)]


def test_refused_with_a_newer_version_that_we_know_it_is_asked_once_more(backend: str) -> None:
    refused = RpcError(-32022, "no", {"supported": ["2025-11-25", "2026-07-28"]})
    said = iter([(0.0, refused), (0.0, DISCOVERED)])

    async def body(peer: Paced) -> None:
        assert (await _meet(peer, Settings())).protocol_version == "2026-07-28"

    peer = _paced(backend, lambda asked: next(said), body)
    assert [method for _, method, _ in peer.heard] == [THEN, THEN]


HELLO = Handshake("2025-11-25", {"tools": {}, "prompts": {}}, {}, None)


def _page(asked: Exchange, seconds: float) -> Answer:
    if asked.method != "tools/list":
        return 0.0, {"prompts": [{"name": "p"}]}
    at = int((asked.params or {}).get("cursor", "0"))
    return seconds, {"tools": [{"name": f"t{at}"}], "nextCursor": str(at + 1)}


def test_all_pages_of_a_list_share_one_deadline(backend: str) -> None:
    async def body(peer: Paced) -> None:
        with pytest.raises(RpcFailure, match="tools/list: no answer within 5s"):
            await list_all(peer, peer._backend, HELLO, Settings(connect_timeout=5.0))
        assert anyio.current_time() == pytest.approx(5.0)

    peer = _paced(backend, lambda asked: _page(asked, 2.0), body)

    assert [at for at, method, _ in peer.heard if method == "tools/list"] == [0.0, 2.0, 4.0]


def test_a_list_with_as_many_pages_as_there_may_be_is_whole(backend: str) -> None:
    def last(asked: Exchange) -> Answer:
        answer = _page(asked, 0.0)
        if answer is not None and (asked.params or {}).get("cursor") == "2":
            del answer[1]["nextCursor"]
        return answer

    async def body(peer: Paced) -> None:
        listing = await list_all(peer, peer._backend, HELLO, Settings(max_pages=3))
        assert _names(listing) == ["t0", "t1", "t2"]
        assert (listing.problems, listing.prompts) == ((), ({"name": "p"},))
        assert listing.resources is None

    _paced(backend, last, body)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ({"tools": [{"name": "a"}], "nextCursor": 7}, "its nextCursor is not a string"),
        ({"tools": [{"name": "a"}, {"name": ""}], "nextCursor": ""}, 'an item without a "name"'),
    ],
)
def test_a_page_with_an_odd_end_is_the_last(backend: str, page: dict[str, Any], problem: str) -> None:
    async def body(peer: Paced) -> None:
        listing = await list_all(peer, peer._backend, HELLO, Settings())
        assert _names(listing) == ["a"]
        assert problem in listing.problems[0]

    peer = _paced(
        backend, lambda asked: (0.0, page if asked.method == "tools/list" else {"prompts": []}), body
    )

    assert len(peer.heard) == 2


def _listing(backend: str, answer: Callable[[Exchange], Answer], settings: Settings, **kinds: Any) -> Any:
    """What a server of these kinds is found to have."""
    found: list[Any] = []

    async def body(peer: Paced) -> None:
        handshake = Handshake("2025-11-25", kinds or {"tools": {}}, {}, None)
        found.append(await list_all(peer, peer._backend, handshake, settings))

    peer = _paced(backend, answer, body)
    return found[0], [method for _, method, _ in peer.heard]


def test_a_server_without_tools_is_listed_too(backend: str) -> None:
    listing, asked = _listing(backend, lambda _: (0.0, {"prompts": [{"name": "p"}]}), Settings(), prompts={})
    assert (listing.tools, listing.prompts) == (None, ({"name": "p"},))
    assert asked == ["prompts/list"]


def test_pages_share_the_bytes_that_one_server_may_have(backend: str) -> None:
    def answer(asked: Exchange) -> Answer:
        at = int((asked.params or {}).get("cursor", "0"))
        return 0.0, {"tools": [{"name": f"t{at}", "description": "x" * 400}], "nextCursor": str(at + 1)}

    listing, asked = _listing(backend, answer, Settings(max_list_bytes=1_000))
    assert _names(listing) == ["t0", "t1"]
    assert "may have 1,000 bytes (maxListBytes)" in listing.problems[0]
    assert len(asked) == 3


def test_what_is_left_out_of_a_list_counts_too(backend: str) -> None:
    def answer(asked: Exchange) -> Answer:
        if (asked.params or {}).get("cursor"):
            return 0.0, {"tools": [{"name": "c"}]}
        return 0.0, {"tools": [{"name": "a"}, {"no": "name"}, {"name": "b"}], "nextCursor": "2"}

    listing, _ = _listing(backend, answer, Settings(max_list_items=3))
    assert _names(listing) == ["a", "b"]
    assert "may have 3 items (maxListItems)" in listing.problems[-1]


def test_tools_come_first_whoever_answers_first(backend: str) -> None:
    def answer(asked: Exchange) -> Answer:
        kind = "tools" if asked.method == "tools/list" else "prompts"
        return (2.0 if kind == "tools" else 0.0), {kind: [{"name": f"{kind}{n}"} for n in range(2)]}

    listing, _ = _listing(backend, answer, Settings(max_list_items=3), tools={}, prompts={})
    assert _names(listing) == ["tools0", "tools1"]
    assert listing.prompts == ({"name": "prompts0"},)


def test_a_cursor_may_be_as_long_as_a_name_and_no_longer(backend: str) -> None:
    def answer(asked: Exchange) -> Answer:
        cursor = (asked.params or {}).get("cursor", "")
        longer = {0: bounds.NAME_CHARACTERS, bounds.NAME_CHARACTERS: bounds.NAME_CHARACTERS + 1}.get(
            len(cursor), 1
        )
        return 0.0, {"tools": [{"name": f"t{len(cursor)}"}], "nextCursor": "x" * longer}

    listing, asked = _listing(backend, answer, Settings())
    assert _names(listing) == ["t0", f"t{bounds.NAME_CHARACTERS}"]
    assert listing.problems == ("tools/list: its nextCursor is too long; what came until then is kept",)
    assert len(asked) == 2
