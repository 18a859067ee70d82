"""Where an address lives."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from greenroom.cluster.placement import ClusterView, HostInfo, owner, share
from greenroom.protocol.address import Address

SERVERS = [Address(f"server-{number}") for number in range(600)]


def hosts(count: int) -> tuple[HostInfo, ...]:
    return tuple(HostInfo(f"host-{number}", "http://h", f"1.{number}") for number in range(count))


def lived(view: ClusterView) -> dict[Address, str]:
    return {address: host.name for address in SERVERS if (host := owner(address, {}, view)) is not None}


@given(st.integers(2, 12), st.data())
def test_a_host_that_goes_moves_only_what_it_had(count: int, data: st.DataObject) -> None:
    there = hosts(count)
    gone = data.draw(st.sampled_from(there))
    before, after = (
        lived(ClusterView("1", those)) for those in (there, tuple(h for h in there if h is not gone))
    )
    moved = {address for address in SERVERS if before[address] != after[address]}
    assert moved == {address for address in SERVERS if before[address] == gone.name}


def test_addresses_are_spread_evenly() -> None:
    counts = Counter(lived(ClusterView("1", hosts(6))).values())
    assert len(counts) == 6
    assert max(counts.values()) < 1.5 * min(counts.values())


def test_who_holds_a_server_keeps_it_and_nobody_else_may_answer_for_it() -> None:
    there, shared, session = hosts(3), Address("x"), Address.of_session("x", "ann")
    for name in ("host-0", "host-1", "host-2"):
        found = owner(shared, {}, ClusterView("1", there, {"x": name}))
        assert found is not None
        assert found.name == name
    assert owner(shared, {}, ClusterView("1", there, {"x": "gone"})) is None
    assert owner(session, {}, ClusterView("1", there, {"x": "gone"})) is not None


def test_a_server_lives_where_there_is_what_it_wants_and_nothing_new_where_a_host_drains() -> None:
    plain, large = (
        HostInfo("plain", "http://p", "1.1"),
        HostInfo("large", "http://l", "1.2", {"zone": "b"}, {"GPU": 2}),
    )
    view = ClusterView("1", (plain, large))
    for wish in (
        {"resources": {"GPU": 1}},
        {"labels": {"zone": "b"}},
        {"resources": {"GPU": 2}, "labels": {"zone": "b"}},
    ):
        assert {owner(address, wish, view) for address in SERVERS} == {large}
    for wish in ({"resources": {"GPU": 3}}, {"labels": {"zone": "a"}}):
        assert owner(SERVERS[0], wish, view) is None
    draining = HostInfo("large", "http://l", "1.2", is_draining=True)
    assert {owner(address, {}, ClusterView("1", (plain, draining))) for address in SERVERS} == {plain}


def test_the_connections_of_a_cluster_are_shared_out() -> None:
    assert [share(20, count) for count in (0, 1, 3, 50)] == [20, 20, 7, 1]
