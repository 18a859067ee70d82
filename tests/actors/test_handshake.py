"""How a server is met: both eras, hints that prove wrong, and who is given how long."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.stdio import CLIENT, Link, definition_of, linked
from tests.support.timers import timers_at_work

from greenroom.actors.backend import Backend, current_backend
from greenroom.actors.handshake import RpcFailure, shake_hands
from greenroom.actors.host import Declaration
from greenroom.actors.list_reader import list_all
from greenroom.actors.peer import Exchange, Handshake
from greenroom.actors.timers import Timers
from greenroom.config.model import Era, Settings
from greenroom.protocol import bounds
from greenroom.protocol.jsonrpc.terms import RpcError

SETTINGS = Settings(probe_timeout=20.0, connect_timeout=60.0)


async def _shake_hands(link: Link, hint: str | None = None, settings: Settings = SETTINGS) -> Handshake:
    return await shake_hands(
        link.peer,
        link.backend,
        link.timers,
        settings=settings,
        client_info=CLIENT,
        declaration=Declaration(),
        era_hint=hint,
    )


@pytest.mark.parametrize("hint", [None, "1999-01-01"])
@in_real_time
async def test_a_handshake_server_is_met_whatever_the_hint(hint: str | None) -> None:
    async with linked(definition_of("faulty.py")) as link:
        handshake = await _shake_hands(link, hint)
        assert handshake.protocol_version == link.peer.protocol_version == "2025-11-25"
        assert handshake.server_info == {"name": "faulty", "version": "1"}
        assert handshake.instructions == "Ask for trouble."


@pytest.mark.parametrize("hint", [None, "2025-06-18"])
@in_real_time
async def test_a_modern_server_is_met_whatever_the_hint(hint: str | None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with linked(definition_of("faulty.py", "--discover", "--log", str(log))) as link:
        handshake = await _shake_hands(link, hint)
        assert handshake.protocol_version == link.peer.protocol_version == "2026-07-28"
        assert handshake.server_info == {"name": "faulty", "version": "1"}
        assert ("got initialize" in log.read_text()) is (hint == "2025-06-18")


@in_real_time
async def test_every_field_of_all_four_lists_is_kept() -> None:
    async with linked(definition_of("faulty.py", "--kinds", "tools,resources,prompts")) as link:
        listing = await list_all(
            link.peer, link.backend, link.timers, await _shake_hands(link, "2025-11-25"), SETTINGS
        )
        assert listing.tools is not None
        assert listing.tools[0]["x-vendor"] == {"kept": True}
        assert listing.resources == ({"uri": "note://one", "name": "one"},)
        assert listing.templates == ({"uriTemplate": "note://{id}", "name": "note"},)
        assert listing.prompts == ({"name": "greet"},)
        assert listing.problems == ()


# ---- in virtual time: who waits for how long ----------------------------------------------------------------------

Answer = tuple[float, Any] | None  # after so many seconds; None: never


class Paced:
    """A peer whose far end answers by the clock. `heard`: what it was asked, and when; `left`: what was abandoned."""

    def __init__(
        self,
        loop_backend: Backend,
        timers: Timers,
        tasks: anyio.abc.TaskGroup,
        answer: Callable[[Exchange], Answer],
    ) -> None:
        self.timers = timers
        self.last_heard = 0.0
        self.protocol_version: str | None = None
        self.beside: str | None = None
        self.may_speak_both = False
        self.said_instead = ""
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


DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
NO = RpcError(-32601, "no")
BROKEN = RpcError(-32000, "no JSON-RPC", fault=True)
FIRST, THEN = "initialize", "server/discover"
WELCOME = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "p"}}


async def _meet(peer: Paced, settings: Settings, hint: str | None = None) -> Handshake:
    return await shake_hands(
        peer,
        peer._backend,
        peer.timers,
        settings=settings,
        client_info=CLIENT,
        declaration=Declaration({"roots": {}}),
        era_hint=hint,
    )


@asynccontextmanager
async def paced(answer: Callable[[Exchange], Answer]) -> AsyncGenerator[Paced]:
    async with timers_at_work() as timers, anyio.create_task_group() as tasks:
        yield Paced(current_backend(), timers, tasks, answer)
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_initialize_has_a_second_even_when_the_probe_used_everything_up() -> None:
    async with paced(lambda asked: (0.9, WELCOME) if asked.method == "initialize" else None) as peer:
        handshake = await _meet(peer, Settings(probe_timeout=2.0, connect_timeout=2.0))
        assert handshake.protocol_version == peer.protocol_version == "2025-11-25"
    assert peer.heard == [(0.0, "server/discover", "2026-07-28"), (2.0, "initialize", None)]
    assert peer.left == ["server/discover"]
    assert peer.told == ["notifications/initialized 2025-11-25"], "from here on as was agreed"


@pytest.mark.parametrize(
    ("hint", "probe", "gives_up"), [(None, 2.0, 2.0), ("2026-07-28", 2.0, 5.0), ("2026-07-28", 8.0, 8.0)]
)
@in_virtual_time
async def test_a_server_of_the_newer_era_last_time_is_given_longer(
    hint: str | None, probe: float, gives_up: float
) -> None:
    async with paced(lambda asked: (0.0, WELCOME) if asked.method == "initialize" else None) as peer:
        await _meet(peer, Settings(probe_timeout=probe, connect_timeout=10.0), hint)
    assert [at for at, _, _ in peer.heard] == [0.0, gives_up]


@in_virtual_time
async def test_what_is_left_of_the_connect_time_is_all_that_initialize_gets() -> None:
    async with paced(lambda asked: None) as peer:
        with pytest.raises(RpcFailure, match="initialize: no answer within 3 s") as caught:
            await _meet(peer, Settings(probe_timeout=2.0, connect_timeout=5.0))
        assert caught.value.timed_out
    assert peer.left == ["server/discover", "initialize"]  # no third try: it said nothing at all


@in_virtual_time
async def test_versions_in_common_are_found_in_the_refusal() -> None:
    refused = RpcError(-32022, "no", {"supported": ["2025-06-18", "2099-01-01"]})
    async with paced(lambda asked: (0.0, refused if asked.method == THEN else WELCOME)) as peer:
        assert (await _meet(peer, Settings())).protocol_version == "2025-11-25"
    strange = RpcError(-32022, "no", {"supported": ["2099-01-01", 7]})
    async with paced(lambda asked: (0.0, strange)) as peer:
        with pytest.raises(RpcFailure, match="speaks protocol version 2099-01-01; Greenroom knows"):
            await _meet(peer, Settings())
        assert peer.protocol_version is None


@in_virtual_time
async def test_who_we_are_is_said_to_both_eras() -> None:
    seen: list[Exchange] = []

    def answer(asked: Exchange) -> Answer:
        seen.append(asked)
        return (0.0, WELCOME) if asked.method == "initialize" else (0.0, RpcError(-32601, "no"))

    async with paced(answer) as peer:
        handshake = await _meet(peer, Settings())
        assert (peer.client_info, peer.client_capabilities) == (CLIENT, {"roots": {}})
        assert handshake.server_info == {"name": "p"}
        assert handshake.instructions is None
    assert seen[1].params == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": CLIENT,
    }


@in_virtual_time
async def test_what_a_server_says_of_itself_has_bounds() -> None:
    deep: Any = {}
    for _ in range(bounds.DEPTH):
        deep = {"x": deep}
    answers: list[tuple[dict[str, Any] | RpcError, str]] = [
        ({**WELCOME, "instructions": "x" * bounds.ITEM_BYTES}, "longer than 2,097,152 bytes"),
        ({**WELCOME, "capabilities": deep}, "nested deeper than 100"),
        ({**WELCOME, "serverInfo": {"x": [[]] * bounds.ITEM_PARTS}}, "of more than 20,000 parts"),
        (RpcError(-32603, f"{'no! ' * 1_000_000}\nValueError: why"), "ValueError: why (-32603)"),
        (RpcError(-32603, "x" * 2_001), f"initialize: {'x' * 1_999}… (-32603)"),
        (RpcError(-32603, "x" * 2_000), f"initialize: {'x' * 2_000} (-32603)"),
        (RpcError(-32603, "x" * 2_001, fault=True), f"initialize: {'x' * 1_999}…"),
    ]
    for answer, why in answers:
        said: dict[str, Answer] = {FIRST: (0.0, answer), THEN: (0.0, NO)}
        async with paced(lambda asked, said=said: said[asked.method]) as peer:
            with pytest.raises(RpcFailure) as failure:
                await _meet(peer, Settings())
        assert why in str(failure.value)
        assert len(str(failure.value)) < 2_100


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
        ({"era_hint": "2025-06-18"}, {THEN: DISCOVERED}, [FIRST], "initialize: no answer within 30 s"),
        ({"era": Era.HANDSHAKE}, {FIRST: WELCOME}, [FIRST], ("2025-11-25", False)),
        ({"era": Era.HANDSHAKE}, {THEN: DISCOVERED}, [FIRST], '"era": "handshake": try "auto"'),
        ({"era": Era.STATELESS}, {FIRST: WELCOME}, [THEN], '"era": "stateless": try "auto"'),
        *[
            ({}, {THEN: NO, FIRST: {**WELCOME, "protocolVersion": version}}, [THEN, FIRST], (version, True))
            for version in ("2024-11-05", "2025-03-26", "2025-06-18")
        ],
        (
            {},
            {THEN: NO, FIRST: {**WELCOME, "protocolVersion": "2099-01-01"}},
            [THEN, FIRST, THEN],
            "'2099-01-01'; Greenroom knows 2024-11-05, ",
        ),
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
@in_virtual_time
async def test_who_is_initialized_how(
    how: dict[str, Any], answers: dict[str, Any], asked: list[str], met: tuple[str, bool] | str
) -> None:
    declaration = Declaration({}, by_handshake=how.get("by_handshake", False))
    wanted = {name: value for name, value in how.items() if name != "by_handshake"}
    async with paced(lambda one: (0.0, answers[one.method]) if one.method in answers else None) as peer:
        meeting = shake_hands(
            peer, peer._backend, peer.timers, settings=Settings(), client_info=CLIENT, declaration=declaration,
            **wanted,
        )  # fmt: skip
        if isinstance(met, str):
            with pytest.raises(RpcFailure) as caught:
                await meeting
            assert met in str(caught.value)
            if how.get("era") is Era.HANDSHAKE:
                assert (caught.value.method, caught.value.error) == (FIRST, answers.get(FIRST))
                assert caught.value.timed_out is (FIRST not in answers)
        else:
            handshake = await meeting
            assert (handshake.protocol_version, handshake.is_its_choice) == met
            assert peer.protocol_version == met[0]
    assert [method for _, method, _ in peer.heard] == asked


@in_virtual_time
async def test_a_deadline_counts_from_when_the_server_was_started() -> None:
    async with paced(lambda asked: None) as peer:
        await anyio.sleep(20.0)
        with pytest.raises(RpcFailure, match="initialize: no answer within 8 s"):
            await shake_hands(
                peer,
                peer._backend,
                peer.timers,
                settings=Settings(probe_timeout=2.0),
                client_info=CLIENT,
                declaration=Declaration(),
                deadline=30.0,
            )
        assert anyio.current_time() == pytest.approx(30.0)


@in_virtual_time
async def test_a_probe_has_no_more_than_is_left() -> None:
    async with paced(lambda asked: None) as peer:
        with pytest.raises(RpcFailure):
            await _meet(peer, Settings(probe_timeout=8.0, connect_timeout=3.0))
    assert peer.heard == [(0.0, "server/discover", "2026-07-28"), (3.0, "initialize", None)]


@in_virtual_time
async def test_refused_with_a_newer_version_that_we_know_it_is_asked_once_more() -> None:
    refused = RpcError(-32022, "no", {"supported": ["2025-11-25", "2026-07-28"]})
    said = iter([(0.0, refused), (0.0, DISCOVERED)])
    async with paced(lambda asked: next(said)) as peer:
        assert (await _meet(peer, Settings())).protocol_version == "2026-07-28"
    assert [method for _, method, _ in peer.heard] == [THEN, THEN]


@in_virtual_time
async def test_a_request_is_named_unless_its_server_was_not_reached() -> None:
    for unreached, told in (
        (False, "initialize: no connection can be made"),
        (True, "no connection can be made"),
    ):
        refused = RpcError(-32603, "no connection can be made", broken=True, unreached=unreached)
        async with paced(lambda asked, refused=refused: (0.0, refused)) as peer:
            with pytest.raises(RpcFailure) as caught:
                await _meet(peer, Settings())
        assert str(caught.value) == told


@in_virtual_time
async def test_a_server_that_answers_initialize_with_a_version_without_it_is_told_so() -> None:
    def answer(asked: Exchange) -> Answer:
        return (0.0, {**WELCOME, "protocolVersion": "2026-07-28"}) if asked.method == "initialize" else None

    async with paced(answer) as peer:
        with pytest.raises(RpcFailure, match="answers it with 2026-07-28, a version without this method"):
            await _meet(peer, Settings(probe_timeout=2.0, connect_timeout=9.0))
