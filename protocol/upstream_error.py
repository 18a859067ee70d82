"""What another Greenroom, which carried a call out for us, says of an end that is its own: no answer of the server.

Its direct door says so in `_meta` of a tool's result, or in the `data` of an error: the error's code, its server, and
how far the request got. An `UpstreamError` is that, and makes the caller's error of it: the same class, code and reach.
The door marks an error of the server itself with the server's name; `as_said` takes the mark away again.

Read this only from a Greenroom that we started ourselves. Any other server could say that a call which ran was never
sent, and the call would be made twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from .errors import (
    DISABLED,
    UNKNOWN_PROFILE,
    UNTRUSTED,
    ApprovalDenied,
    ApprovalNeeded,
    Bug,
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    CredentialNeeded,
    Drained,
    InputRefused,
    NeedsAuth,
    ProtocolFault,
    RateLimited,
    Reach,
    RepeatedCall,
    ServerDown,
    ServerLost,
    SessionNeeded,
    ToolChanged,
    Unavailable,
    UsageError,
)

ERROR: Final = "greenroom/error"  # in `_meta` of a tool's result
SERVER: Final = "greenroom/server"  # in a server's requests and in the data of its errors: its name
NEW_PROCESS: Final = "greenroom/newProcess"  # in `_meta` of a session's first result from a new process
RETRY_AFTER: Final = "retryAfter"  # beside the code: seconds, where the error has them
LIMIT: Final = "limit"  # likewise: the limit that refuses, and where it stands

# What is not said of an error of each class, beside its text.
_UNSAID: Final[Mapping[type[CallError], Mapping[str, Any]]] = {
    ApprovalDenied: {},
    ApprovalNeeded: {"reason": "", "question": ""},
    Bug: {},
    Busy: {"in_flight": 0, "queued": 0, "oldest_age": 0.0, "retry_in": 0.0},
    CallTimeout: {"timeout": 0.0},
    ConnectFailed: {"reason": "", "exit_code": None, "stderr_tail": ()},
    CredentialNeeded: {"variables": ()},
    Drained: {},
    InputRefused: {},
    NeedsAuth: {},
    ProtocolFault: {},
    RateLimited: {"retry_in": 0.0, "limit": ""},
    RepeatedCall: {"retry_in": 0.0, "limit": ""},
    ServerDown: {},
    ServerLost: {"exit_code": None, "stderr_tail": ()},
    SessionNeeded: {},
    ToolChanged: {},
    Unavailable: {"failed_ago": 0.0, "retry_in": 0.0, "reason": ""},
    UsageError: {},
}
_CLASSES: Final[Mapping[str, type[CallError]]] = {
    **{each.code: each for each in _UNSAID if each is not ServerLost},
    **dict.fromkeys((DISABLED, UNTRUSTED), ServerDown),
    "config_error": ServerDown,  # its entry cannot be used
    **dict.fromkeys(("server_not_found", "tool_not_found", "prompt_not_found"), UsageError),
    **dict.fromkeys(("resource_not_found", "skill_not_found", "ambiguous_tool", UNKNOWN_PROFILE), UsageError),
}


class UpstreamError(msgspec.Struct, frozen=True):
    """An error of another Greenroom, without its text."""

    code: str
    reach: Reach
    retry_in: float = 0.0  # seconds; 0.0: not said
    limit: str = ""

    def error(self, text: str, *, server: str, tool: str | None = None) -> CallError:
        """The error with this text, as a caller gets it."""
        kind = _CLASSES.get(self.code, ServerLost)
        made = kind.__new__(kind, text)
        CallError.__init__(made, text, server=server, reach=self.reach, tool=tool)
        vars(made).update(_UNSAID.get(kind, {}))
        made.code = self.code
        if isinstance(made, Unavailable | Busy):
            made.retry_in = self.retry_in
        elif isinstance(made, RateLimited | RepeatedCall):
            made.retry_in, made.limit = self.retry_in, self.limit
        elif isinstance(made, ConnectFailed):
            made.reason = text.removeprefix(f'Failed to connect to "{server}": ')
        return made


def details_of_error(error: CallError) -> dict[str, Any]:
    """What the direct door says of an error that is ours."""
    said: dict[str, Any] = {"error": error.code, "server": error.server, "reach": str(error.reach)}
    if isinstance(error, Unavailable | Busy):
        said[RETRY_AFTER] = round(error.retry_in, 1)
    elif isinstance(error, RateLimited | RepeatedCall):
        said |= {RETRY_AFTER: round(error.retry_in, 1), LIMIT: error.limit}
    return said


def read_upstream(said: Any) -> UpstreamError | None:
    """The error that another Greenroom's direct door describes like this; None: it is something else. Without a reach,
    the request was wrong and was not sent."""
    if not isinstance(said, Mapping):
        return None
    told = cast("Mapping[str, Any]", said)
    code, retry, limit = told.get("error"), told.get(RETRY_AFTER, 0.0), told.get(LIMIT)
    try:
        reach = Reach(told.get("reach", Reach.NOT_SENT))
    except ValueError:
        return None
    if not isinstance(code, str) or not isinstance(retry, (int, float)):
        return None
    return UpstreamError(code, reach, float(retry), limit if isinstance(limit, str) else "")


def upstream_in_error(data: Any) -> UpstreamError | None:
    """The error that another Greenroom answers any other request with; None: the server answered."""
    return None if not isinstance(data, Mapping) or SERVER in data else read_upstream(cast("Any", data))


def as_said(server: str, message: str, data: Any) -> tuple[str, Any]:
    """Message and data of a server's error as the server sent them, without the server's name."""
    message = unsigned(server, message)
    if not isinstance(data, Mapping) or SERVER not in data:
        return message, cast("Any", data)
    said: dict[str, Any] = {
        key: value for key, value in cast("Mapping[str, Any]", data).items() if key != SERVER
    }
    asked: object = said.get("elicitations")
    if isinstance(asked, list):
        said["elicitations"] = [unsigned_request(server, one) for one in cast("list[Any]", asked)]
    return message, said or None


def unsigned(server: str, text: str) -> str:
    return text.removeprefix(f"[{server}] ")


def unsigned_request(server: str, said: Any) -> Any:
    """A server's question as the server asked it: without its name at the start of its `message`."""
    if not isinstance(said, Mapping):
        return said
    asked = cast("Mapping[str, Any]", said)
    message: object = asked.get("message")
    return {**asked, "message": unsigned(server, message)} if isinstance(message, str) else asked
