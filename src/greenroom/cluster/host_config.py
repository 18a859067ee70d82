"""The configuration on its way from a front to the hosts, and what a host and a front make of it.

A front does what stands between a caller and a server: names, profiles, approval, pins, audit, and credentials in
results, but for those that only a host knows. So a host has none of it, and shows each server alone, under its own
names, as a profile of its own. A host does what belongs to a process. So a front has as many links as it likes.

The configuration travels as a pickle. Whoever can write it can start programs on every host as well, so it is no more
dangerous than what it says; but both ends must be of one version, which is told before anything is read.
"""

from __future__ import annotations

import pickle
import re
from typing import Final

import msgspec

from ..config.asked_values import is_asked
from ..config.model import (
    Approve,
    Config,
    Era,
    Isolation,
    Lifecycle,
    Pinning,
    PrefixMode,
    Profile,
    RestartPolicy,
    Scrub,
    ServerDefinition,
    Settings,
)
from ..config.references import SESSION, isolation_of, referred_to, session_variables, texts_of
from ..protocol.errors import UsageError
from ..protocol.version import VERSION
from .placement import share

_LINKS: Final = 1_000_000  # that one front, or the fronts of one host, may have: what is bounded is what runs
_NAME: Final = 100_000  # characters of a tool's name, which a host never cuts
_LATER: Final = 2.0  # seconds that a front waits longer than a host
_MOVE: Final = 30.0  # seconds that an address may take to be free for another host
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_WITH_VERSION: Final = re.compile(rb"greenroom ([^\n]{1,40})\n")


def packed(config: Config) -> bytes:
    """A configuration on its way to the hosts."""
    return f"greenroom {VERSION}\n".encode() + pickle.dumps(config)


def unpacked(raw: bytes) -> Config:
    """The configuration that a front has posted. Raises `UsageError` if another version of Greenroom has posted it."""
    head = _WITH_VERSION.match(raw)
    version = "an unknown version" if head is None else head[1].decode(errors="replace")
    if head is None or version != VERSION:
        raise UsageError(
            f"The configuration of the cluster was posted by Greenroom {version}, and this is {VERSION}. "
            "Use one version for all hosts and fronts."
        )
    return pickle.loads(raw[head.end() :])  # noqa: S301  see above


def profile_of(server: str) -> str:
    """The profile under which a host shows this server, as it is written in a path."""
    return server if _PLAIN.fullmatch(server) else f"hex.{server.encode().hex()}"


def is_of_hosts(definition: ServerDefinition) -> bool:
    """Whether hosts have this server. One in the process or behind a socket is where the front is."""
    return definition.command is not None or definition.url is not None


def for_front(config: Config) -> Config:
    """What a front has. Its links speak the version with sessions: the session is what a host isolates by."""
    given = config.settings
    servers = {name: _link(one, given) if is_of_hosts(one) else one for name, one in config.servers.items()}
    later = given.queue_timeout + _LATER
    settings = msgspec.structs.replace(
        given,
        max_connections=_LINKS,
        start_permits=_LINKS,  # what starts is bounded at the hosts, and one that is stopped must hold up no other
        max_in_flight=_LINKS,  # likewise: a call that waits for its place at a host counts as sent here
        call_timeout=given.call_timeout + later,
        call_total_timeout=given.call_total_timeout + later,
    )
    return msgspec.structs.replace(config, servers=servers, settings=settings)


def _link(definition: ServerDefinition, settings: Settings) -> ServerDefinition:
    """The host's limits come first, so that it says what happened: a call that waits in its queue was sent as far as
    the front knows, and its time has not begun. To connect may take as long as to install a server,
    and as long as a lease before that: what comes to nothing is told by the host, or by its end."""
    start = max(
        definition.connect_timeout or settings.connect_timeout,
        definition.install_timeout or settings.install_timeout,
    )
    timeout = definition.call_timeout
    return msgspec.structs.replace(
        definition,
        era=Era.HANDSHAKE,
        max_in_flight=None,
        call_timeout=None if timeout is None else timeout + settings.queue_timeout + _LATER,
        connect_timeout=start + _MOVE,
    )


def for_host(config: Config, hosts: int, bind: str = "127.0.0.1") -> Config:
    """What one of so many hosts has. `bind`: the address that fronts know it by."""
    servers = {
        name: _at_host(one, config.settings, hosts)
        for name, one in config.servers.items()
        if is_of_hosts(one)
    }
    profiles = {profile_of(name): Profile(servers=(name,), expose="direct") for name in servers}
    return msgspec.structs.replace(
        config,
        servers=servers,
        settings=_settings(config, hosts, bind),
        profiles=profiles,
        untrusted=(),
    )


def _at_host(definition: ServerDefinition, settings: Settings, hosts: int) -> ServerDefinition:
    """It starts when a front wants it. One that is to be kept then stays, and comes back."""
    kept = definition.lifecycle is not Lifecycle.LAZY
    idle = 0.0 if kept and definition.idle_timeout is None else definition.idle_timeout
    restart = definition.restart_policy
    if restart is None and definition.lifecycle is Lifecycle.KEEP_ALIVE:
        restart = RestartPolicy.ALWAYS
    return msgspec.structs.replace(
        definition,
        lifecycle=Lifecycle.LAZY,
        idle_timeout=idle,
        restart_policy=restart,
        max_in_flight=_in_flight(definition, settings, hosts),
        warm=share(definition.warm, hosts) if definition.warm else 0,
        tool_prefix=PrefixMode.NONE,
        tool_overrides={},
        include_tools=None,
        exclude_tools=(),
        direct_tools=None,
        approve=None,
        limits={},
        loop_guard={},
        pinning=Pinning.OFF,
        scrub=_scrubbing(definition, settings),
        bootstrap=bool(session_variables(definition)),  # the first list of a session waits for these
        placement={},
    )


def _in_flight(definition: ServerDefinition, settings: Settings, hosts: int) -> int:
    """How many calls of it one host may have in flight: all of them, if it lives at one host; else its share."""
    most = definition.max_in_flight or settings.max_in_flight
    return most if isolation_of(definition, settings) is Isolation.PERSISTENT else share(most, hosts)


def _scrubbing(definition: ServerDefinition, settings: Settings) -> Scrub:
    """Results lose credentials at the front, which knows who is to see them. But what a host has from its own
    environment, or from a login, no front knows: a server that is given such a thing is scrubbed at the host, for
    everybody."""
    said = definition.scrub or settings.scrub
    inherited = settings.inherit_env if definition.inherit_env is None else definition.inherit_env
    given = bool(definition.url or definition.env_file or inherited)
    texts = (
        *(text for _, _, text in texts_of(definition)),
        *definition.env.values(),
        *definition.headers.values(),
    )
    if said is not Scrub.OFF and (given or any(map(_is_of_here, texts))):
        return Scrub.ALL_NAMES if said.is_by_name else Scrub.ALL
    return said


def _is_of_here(text: str) -> bool:
    """Whether a value is known only where it is used."""
    return is_asked(text) or any(not name.startswith(SESSION) for name, _ in referred_to(text))


def _settings(config: Config, hosts: int, bind: str) -> Settings:
    return msgspec.structs.replace(
        config.settings,
        max_connections=share(config.settings.max_connections, hosts),
        tool_prefix=PrefixMode.NONE,
        name_limit=_NAME,
        client_prefix=None,
        pinning=Pinning.OFF,
        approve=Approve.OFF,
        limits={},
        loop_guard={},
        bootstrap=True,
        http_hosts=(bind,),
        http_tokens={},
        http_token_profiles={},
        http_oauth_issuer=None,
        http_session_headers={},
        http_metrics=False,
        tasks_keep=None,
        semantic_search=False,
    )
