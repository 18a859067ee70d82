"""The bounds of the HTTP door. Times are in seconds, sizes in bytes."""

from __future__ import annotations

from typing import Final

import attrs

from ...protocol.config import Settings

MIB: Final = 1 << 20


@attrs.frozen
class Rules:
    max_body: int = 4 * MIB  # of one request
    body_time: float = 30.0  # for a whole body to arrive
    head_time: float = 10.0  # for a whole head to arrive
    waiting_heads: int = 128  # connections without a whole request; of more, the oldest are closed
    connections: int = 4096
    stalled_time: float = 60.0  # a peer that reads nothing for so long, while something waits, is cut
    keep_alive: float = 15.0  # between two signs of life on a silent event stream
    commit_time: float = (
        2.0  # a request without an answer for so long gets an event stream, which can be resumed
    )
    replay_events: int = 256  # of one event stream
    replay_bytes: int = MIB  # of one event stream
    busy_bytes: int = 256 << 10  # unread by the client: no notification is added
    ended_streams: int = 16  # of one session, which can still be replayed
    ended_bytes: int = 2 * MIB  # in these
    max_sessions: int = 1000
    session_idle: float = 1800.0  # without a message
    session_life: float = 86_400.0
    gives_way: float = (
        60.0  # silent for so long, a session without a stream ends when its child's slot is wanted
    )
    look_for_room: float = 1.0  # between two looks at who could give way, while something waits for a slot
    open_requests: int = 1024  # HTTP requests of one session at once


def rules_of(settings: Settings) -> Rules:
    return Rules(
        max_body=settings.http_max_body,
        max_sessions=settings.http_max_sessions,
        session_idle=settings.http_session_idle,
        session_life=settings.http_session_life,
    )
