"""What hosts and fronts make of the configuration of a cluster."""

from __future__ import annotations

import msgspec

from greenroom.cluster.host_config import for_front, for_host
from greenroom.config.model import Config, Isolation, ServerDefinition, Settings


def test_a_front_waits_for_a_call_as_long_as_its_host_may() -> None:
    """The call waits in the host's queue first, and only the host knows whether the server has it."""
    given = Settings(queue_timeout=40.0, call_timeout=50.0, call_total_timeout=60.0)
    servers = {
        "plain": ServerDefinition("plain", command="x"),
        "slow": ServerDefinition("slow", command="x", call_timeout=300.0),
    }
    front = for_front(Config(servers=servers, settings=given))
    assert front.settings.call_timeout > 40.0 + 50.0
    assert front.settings.call_total_timeout > 40.0 + 60.0
    assert (front.servers["slow"].call_timeout or 0.0) > 40.0 + 300.0
    assert front.servers["plain"].call_timeout is None


def test_a_server_that_is_where_the_front_is_keeps_its_limits() -> None:
    there = ServerDefinition("there", socket="/run/x", call_timeout=5.0)
    config = Config(servers={"there": there}, settings=Settings())
    assert for_front(config).servers["there"] == msgspec.structs.replace(there)


def test_calls_in_flight_are_bounded_at_the_hosts_and_shared_out_where_a_server_has_several() -> None:
    servers = {
        "alone": ServerDefinition("alone", command="x", isolation=Isolation.PERSISTENT, max_in_flight=6),
        "spread": ServerDefinition("spread", command="x", isolation=Isolation.PER_SESSION, max_in_flight=6),
        "as set": ServerDefinition("as set", url="http://127.0.0.1:1", isolation=Isolation.PER_SESSION),
    }
    config = Config(servers=servers, settings=Settings(max_in_flight=8))
    front, host = for_front(config), for_host(config, 3)
    assert (
        min(front.settings.max_in_flight, *(one.max_in_flight or 999 for one in front.servers.values())) > 99
    )
    assert [one.max_in_flight for one in host.servers.values()] == [6, 2, 3]
