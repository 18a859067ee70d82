"""Errors, named by whose fault they are and what to do next.

There is one root, `GreenroomError`. Every error has a `code` for programs (stable, from the `mcp` tool's contract), the
server it is about if there is one, and a message that tells a person the next step. An error that ends a call is a
`CallError` and says how far the request got (`Reach`), which decides whether it may be sent again.

Everything that a call or another request raises is a `CallError`, even for an unknown name. Wrong use that is not
about a call (a room opened twice) is a `UsageError` too.

The families tell who is at fault:

- *you*: `ConfigError`, `UsageError` with its subclasses, `BadArguments`, `SessionNeeded`, `InputRefused`,
  `ApprovalDenied`, `ApprovalNeeded`, `RepeatedCall`, `CallCancelled`;
- *the owner*, who has not decided yet: `ToolChanged`;
- *nobody, but not now*: `Unavailable`, `Busy`, `RateLimited`, `ServerDown`, `NeedsAuth`, `Drained`, `RoomClosed`;
- *the server*: `ConnectFailed`, `ServerLost`, `CallTimeout`, `RemoteError`, `ToolFailed`, `ProtocolFault`;
- *Greenroom*: `Bug`.

No error ever shows a user a traceback.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from .lazy_patterns import lazy_pattern
from .near_names import meant


class Reach(enum.StrEnum):
    """How far a request got; it only moves forward. Each member is a string, also in JSON."""

    NOT_SENT = "not_sent"  # no write accepted a byte of it: it cannot have run
    SENT = "sent"  # a byte was accepted, no answer came: it may have run
    ANSWERED = "answered"  # the server answered

    @property
    def words(self) -> str:
        """The reach as part of a sentence, for the text of a failed call."""
        return "the call was not sent" if self is Reach.NOT_SENT else "the call was sent and may have run"


class FailureKind(enum.StrEnum):
    """What kind of failure it is that a server did not start, or was lost. Each member is a string, also in JSON."""

    PROGRAM = "program"  # its program cannot be run: no such command or folder, or no right to it
    CONNECTION = "connection"  # nobody listens where it is to be reached, or there is no such host
    EXIT = "exit"  # its process ended by itself
    SILENCE = "silence"  # it did not answer in time
    OTHER = "other"


class GreenroomError(Exception):
    """The base class of all errors that Greenroom raises on purpose."""

    code: str = "error"  # for programs; each class has a default, and an instance may have another code
    _http_status: int = 500

    @property
    def message(self) -> str:
        """The text for a person, without the class name."""
        return str(self)

    @property
    def http_status(self) -> int:
        """The HTTP status for a web service that answers its own client with this error, if names and arguments came
        from the client. 4xx: the client can fix it. 502 and 504: the MCP server failed. 503: it may work later."""
        return self._http_status

    def as_dict(self) -> dict[str, Any]:
        """The error as a dict, for a log: `code`, `message`, and all its fields. Message and fields may quote the
        server's stderr, so send only `code` and `reach` to a web client."""
        fields = {name: _plain(value) for name, value in vars(self).items() if name[0] != "_"}
        return {"code": self.code, "message": self.message, **fields}

    def __reduce__(self) -> tuple[Any, ...]:
        """As itself to another process: a worker of a pool raises it there, and who waits for it catches it here. Most
        are made of parts that their message does not show, so their classes are not called again."""
        return _again, (type(self), self.args), vars(self)

    def hide(self, without: Callable[[str], str]) -> None:
        """Pass every text in it through `without`: the message and the values of its fields."""
        self.args: tuple[Any, ...] = tuple(
            without(each) if isinstance(each, str) else each for each in self.args
        )
        for name, value in vars(self).items():
            if isinstance(value, str) and not isinstance(value, enum.Enum):
                setattr(self, name, without(value))
            elif isinstance(value, tuple):
                texts = cast("tuple[Any, ...]", value)
                if name == "stderr_tail":
                    setattr(self, name, hidden_lines(texts, without))
                else:
                    setattr(
                        self, name, tuple(without(each) if isinstance(each, str) else each for each in texts)
                    )


def _again(kind: type[GreenroomError], said: tuple[Any, ...]) -> GreenroomError:
    return kind.__new__(kind, *said)


def hidden_lines(lines: Sequence[str], without: Callable[[str], str]) -> tuple[str, ...]:
    """The lines, passed through `without` together, because a secret may go on from one line to the next."""
    return tuple(without("\n".join(lines)).split("\n")) if lines else ()


# ---- yours: something you wrote or asked for --------------------------------------------------------------------
def _printable(text: str) -> str:
    """Text that any output can show: half a character, which JSON can escape, is shown as its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: Any) -> Any:
    """The value as plain JSON: problems as objects, tuples as lists. A server's own data is unchanged."""
    if isinstance(value, tuple):
        return [_plain(each) for each in cast("tuple[Any, ...]", value)]
    return msgspec.structs.asdict(value) if isinstance(value, Problem) else value


DISABLED: Final = "server_disabled"  # the code of a server that its owner has taken out of service
UNTRUSTED: Final = "server_untrusted"  # the code when a project's file has not been trusted by its owner
NO_EFFECT_HERE: Final = "no_effect_here"  # the code of a problem that is a key of another program
UNSET_VARIABLE: Final = (
    "unset_variable"  # the code of a warning: a value refers to a variable that is not set
)
UNKNOWN_PROFILE: Final = (
    "unknown_profile"  # the code when a profile is named that the configuration does not have
)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a configuration: its place, what is wrong, and what to do."""

    where: str  # "mcp.json: mcpServers.github.command"
    what: str  # what is wrong, and what to do if `step` does not say it
    fatal: bool = True  # a server with a fatal problem is not served; a non-fatal one is a warning
    code: str = "config_error"  # the code of the error that refuses a call of a server with it
    step: str = ""  # what to do, as a sentence without its full stop

    def __post_init__(self) -> None:
        for name in ("where", "what"):
            msgspec.structs.force_setattr(self, name, _printable(getattr(self, name)))

    def __str__(self) -> str:
        return f"{self.where}: {self.in_words}"

    @property
    def in_words(self) -> str:
        """What is wrong, and what to do."""
        return f"{self.what}. {self.step}" if self.step else self.what


class ConfigError(GreenroomError):
    """The configuration cannot be used. `problems` names each place."""

    code = "config_error"

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems: tuple[Problem, ...] = tuple(problems)  # each place that is wrong


class CallError(GreenroomError):
    """A call or another request failed or was refused, so it has no result. `reach` says how far it got."""

    code = "call_failed"

    def __init__(
        self, message: str, *, server: str, reach: Reach = Reach.NOT_SENT, tool: str | None = None
    ) -> None:
        super().__init__(message)
        self.server = server  # the one that was called, or "" when the error is not about a server
        self.reach = reach  # how far the call got: whether the server may have carried it out
        self.tool = tool  # the name that was called; None: it was no call of a tool, or not yet known

    def copy(self, reach: Reach | None = None) -> CallError:
        """The same error for another call. Each call gets its own object, so tool names and tracebacks do not mix."""
        copy = self.__class__.__new__(self.__class__, *self.args)
        copy.args = self.args
        copy.__dict__.update(self.__dict__)
        copy.tool = None
        if reach is not None:
            copy.reach = reach
        return copy

    def after_sending(self) -> CallError:
        """The same error for a call of which an earlier attempt was sent."""
        copy = self.copy(Reach.SENT)
        said = self.message.replace(Reach.NOT_SENT.words, "this attempt was not sent").rstrip(".")
        copy.args = (f"{said}. An earlier attempt of the call was sent and may have run.", *self.args[1:])
        return copy


class UsageError(CallError):
    """The request itself is wrong, so it was not sent. Repeating it unchanged cannot help. `server` is "" when the
    error is not about a server."""

    code = "invalid_request"
    _http_status = 400

    def __init__(self, message: str, *, code: str | None = None, server: str = "") -> None:
        super().__init__(message, server=server)
        if code is not None:
            self.code: str = code


_MOST_NAMES: Final = 60


def some_of(names: Sequence[str]) -> str:
    """The names, separated by commas. If there are many, only the first are listed, and the number of the others."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


class UnknownServer(UsageError):
    """No server of that name is configured."""

    code = "server_not_found"
    _http_status = 404

    def __init__(self, server: str, known: Sequence[str] = ()) -> None:
        there = f" Configured: {some_of(known)}.{meant(server, known)}"
        hint = there if known else " No servers are configured."
        super().__init__(f'Server "{server}" not found.{hint}', server=server)
        self.known: tuple[str, ...] = tuple(known)  # the names of the servers that are configured


class UnknownTool(UsageError):
    """No tool has that name. `connected`: the servers that were connected to search their lists."""

    code = "tool_not_found"
    _http_status = 404

    def __init__(
        self,
        tool: str,
        *,
        message: str | None = None,
        suggestions: Sequence[str] = (),
        connected: Sequence[str] = (),
    ) -> None:
        hint = f" Did you mean: {', '.join(suggestions)}" if suggestions else ""
        super().__init__((message or f'Tool "{tool}" not found.') + hint)
        self.tool = tool  # the name that was called
        self.suggestions: tuple[str, ...] = tuple(suggestions)  # similar names that exist
        self.connected: tuple[str, ...] = tuple(
            connected
        )  # the servers that were connected to search their lists


class UnknownPrompt(UsageError):
    """No prompt has that name."""

    code = "prompt_not_found"
    _http_status = 404

    def __init__(self, prompt: str, known: Sequence[str] = ()) -> None:
        hint = f" There are: {some_of(known)}." if known else " No prompts are known."
        super().__init__(f'Prompt "{prompt}" not found.{hint}')
        self.prompt = prompt  # the name that was asked for


class UnknownSkill(UsageError):
    """No skill has that name, or the skill has no such file."""

    code = "skill_not_found"
    _http_status = 404

    def __init__(self, skill: str, known: Sequence[str] = ()) -> None:
        hint = f" There are: {some_of(known)}." if known else " No skills are known."
        super().__init__(f'Skill "{skill}" not found.{hint}')
        self.skill = skill  # the name that was asked for


class UnknownResource(UsageError):
    """No server is known to have that URI, or more than one may have it."""

    code = "resource_not_found"
    _http_status = 404

    def __init__(self, uri: str, servers: Sequence[str] = ()) -> None:
        there = f" Use a URI as it is listed, or say which server has it: {some_of(servers)}."
        hint = there if servers else " No server has resources."
        super().__init__(f'Resource "{uri}" is not listed by any server.{hint}')
        self.uri = uri  # the URI that was asked for


class AmbiguousTool(UsageError):
    """More than one tool (or prompt, or resource) has that name; nothing was called."""

    code = "ambiguous_tool"

    def __init__(self, tool: str, candidates: Sequence[str], *, what: str = "Tool") -> None:
        super().__init__(
            f'{what} "{tool}" matches multiple servers. Use one of these, or say which server: {some_of(candidates)}'
        )
        self.tool = tool  # the name that was called
        self.candidates: tuple[str, ...] = tuple(candidates)  # the full names that it may mean


class RpcRefusal(GreenroomError):
    """A JSON-RPC error that answers a server's request. Callbacks of a room raise it to refuse in their own words. Any
    other exception of a callback becomes -32603 without its text."""

    code = "refused"

    def __init__(self, rpc_code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code  # the `code` of the JSON-RPC error
        self.data = data  # the `data` of the JSON-RPC error; None: it has none


# ---- ends of a call ------------------------------------------------------------------------------------------------
class BadArguments(CallError):
    """The arguments cannot be written as JSON, so the call was not sent."""

    code = "invalid_request"
    _http_status = 400


class Unavailable(CallError):
    """The server failed recently and its circuit breaker refuses calls. Not sent; retry after `retry_in` seconds."""

    code = "server_unavailable"
    _http_status = 503

    def __init__(self, server: str, *, failed_ago: float, retry_in: float, reason: str = "") -> None:
        text = f'Server "{server}" not available (failed {round(failed_ago)} s ago)'
        text += f": {reason.rstrip('.')}" if reason else ""
        text += f". Retry in {max(1, round(retry_in))} s."
        super().__init__(text, server=server)
        self.failed_ago = failed_ago  # seconds since its last failure
        self.retry_in = retry_in  # seconds until a call may be made again
        self.reason = reason  # why it failed; "": not known


class Busy(CallError):
    """The server's bounds are full, or the room's (then `server` is ""). Not sent; retry after `retry_in` s."""

    code = "server_busy"
    _http_status = 503

    def __init__(
        self,
        server: str,
        *,
        in_flight: int,
        queued: int,
        oldest_age: float,
        retry_in: float,
        why: str = "",
    ) -> None:
        who = f'Server "{server}"' if server else "The room"
        calls = "1 call" if in_flight == 1 else f"{in_flight} calls"
        super().__init__(
            f"{who} is busy: {calls} in flight, {queued} queued, the oldest for "
            f"{oldest_age:.1f} s{'; ' + why if why else ''}. Retry in {retry_in:.1f} s.",
            server=server,
        )
        self.in_flight = in_flight  # calls that were sent and not answered
        self.queued = queued  # calls that wait to be sent
        self.oldest_age = oldest_age  # seconds since the oldest of all these calls was accepted
        self.retry_in = retry_in  # seconds until a call may be made again


class RateLimited(CallError):
    """The configuration allows no more calls of this kind now. Not sent; retry after `retry_in` s. `limit`: the one
    that refuses, with its place: `settings.limits["github_*"]: 30/min`."""

    code = "rate_limited"
    _http_status = 429

    def __init__(self, tool: str, server: str, *, limit: str, retry_in: float) -> None:
        text = f'The call of "{tool}" is over a limit ({limit}) and was not sent. Retry in {retry_in:.1f} s.'
        super().__init__(text, server=server, tool=tool)
        self.limit = limit  # the limit that refuses, with its place in the configuration
        self.retry_in = retry_in  # seconds until a call may be made again


class RepeatedCall(CallError):
    """The same calls were made over and over, with the same arguments, and the loop guard refuses one more. Not sent;
    it may be made again after `retry_in` s, other calls at once. `limit`: as that of `RateLimited`."""

    code = "repeated_call"
    _http_status = 429

    def __init__(self, tool: str, server: str, *, what: str, limit: str, retry_in: float) -> None:
        text = (
            f'The call of "{tool}" was not sent: {what} ({limit}). The answer will hardly be another one: go on with '
            f"what you have, or call with other arguments. The same call may be made again in {retry_in:.1f} s."
        )
        super().__init__(text, server=server, tool=tool)
        self.limit = limit  # the limit that refuses, with its place in the configuration
        self.retry_in = retry_in  # seconds until a call may be made again


class ServerDown(CallError):
    """The server was stopped, disabled or removed, and a call does not bring it back. Not sent."""

    code = "server_not_connected"
    _http_status = 503


class NeedsAuth(CallError):
    """The server wants a login. Not sent; log in, then connect again."""

    code = "auth_required"
    _http_status = 503


class SessionNeeded(CallError):
    """The server is isolated per session, and the call came without one. Not sent."""

    code = "session_needed"


CALLER: Final = (
    "caller-identity"  # who the door says the caller is. No reference can name it, and so send it on
)


class CredentialNeeded(SessionNeeded):
    """The server needs credentials of a session, and this session lacks some of them, or the call came without a
    session. Nothing was started. `variables`: the missing ones."""

    code = "credential_needed"
    _http_status = 403

    def __init__(self, server: str, variables: tuple[str, ...], *, has_session: bool = True) -> None:
        self.variables: tuple[str, ...] = variables  # the names of the variables that the session lacks
        if CALLER in variables:
            super().__init__(_unknown_caller(server, has_session=has_session), server=server)
            return
        names = ", ".join(f"${{session.{name}}}" for name in variables)
        given = ", ".join(f'"{name}": …' for name in variables)
        who = "this session does not give it" if has_session else "this call is in no session"
        super().__init__(
            f'Server "{server}" needs {names}, and {who}; nothing was started. '
            "It is given when the session is opened: by a client over HTTP in a header that http.sessionHeaders names, "
            f"by one of `greenroom attach` in its environment, by a program as variables={{{given}}}.",
            server=server,
        )
        self.variables: tuple[str, ...] = variables  # the names of the variables that the session lacks


def _unknown_caller(server: str, *, has_session: bool) -> str:
    who = "nobody knows who calls here" if has_session else "this call is in no session"
    return (
        f'Server "{server}" is called as its caller, and {who}; nothing was sent. Come over HTTP with an access token '
        "of the issuer in http.oauth; or let the session give the caller's token, and name it in the server's entry: "
        '"oauth": {"subjectToken": "${session.NAME}"}.'
    )


class ApprovalDenied(CallError):
    """A person, or the program that embeds the room, did not allow the call. Not sent."""

    code = "approval_denied"
    _http_status = 403

    def __init__(self, tool: str, server: str) -> None:
        text = f'The call of tool "{tool}" of server "{server}" was not allowed; it was not sent.'
        super().__init__(f"{text} Ask the user before you try it again.", server=server, tool=tool)


class ApprovalNeeded(CallError):
    """The call needs somebody's yes and got no answer. Not sent. `reason`: "nobody" can be asked; the question
    "expired", was "dismissed" or "failed"; the server was "changed" meanwhile; or too many calls wait ("busy")."""

    code = "approval_required"
    _http_status = 403

    def __init__(self, tool: str, server: str, reason: str, why: str, question: str = "") -> None:
        text = f'The call of tool "{tool}" of server "{server}" needs a person\'s approval, and {why}; it was not sent.'
        super().__init__(text, server=server, tool=tool)
        self.reason = reason  # why nobody was asked, or has answered
        self.question = question  # what a person would be asked


class ToolChanged(CallError):
    """The tool's definition has changed, and its owner has not accepted that yet. Not sent."""

    code = "tool_changed"
    _http_status = 503


class Drained(CallError):
    """The server was asked to drain and the call was not done at the deadline."""

    code = "drained"
    _http_status = 503


class CallCancelled(CallError):
    """The caller has cancelled the call, so it has no result. If it was sent, it may still have run."""

    code = "cancelled"
    _http_status = 409


class RoomClosed(CallError):
    """The room has been closed, or is closing. Not sent."""

    code = "server_not_connected"
    _http_status = 503


class ConnectFailed(CallError):
    """The server could not be started, or the handshake failed. Not sent. `reason`: the message without the server."""

    code = "connect_failed"
    _http_status = 502

    def __init__(
        self,
        reason: str,
        *,
        server: str,
        exit_code: int | None = None,
        stderr_tail: Sequence[str] = (),
        is_lasting: bool = False,
        kind: FailureKind = FailureKind.OTHER,
    ) -> None:
        super().__init__(f'Failed to connect to "{server}": {reason}', server=server)
        self.kind = kind  # what kind of failure it is
        self.reason = reason  # why, without the name of the server
        self.is_lasting = is_lasting  # its command cannot be run: only another entry or other files can help
        self.exit_code = exit_code  # of its process; negative: the signal that ended it; None: unknown
        self.stderr_tail: tuple[str, ...] = tuple(stderr_tail)  # the last lines of its stderr that say why


class ServerLost(CallError):
    """The connection ended during the call: end of file, exit, a broken pipe, or an expired session."""

    _http_status = 502

    def __init__(
        self,
        message: str,
        *,
        server: str,
        reach: Reach,
        tool: str | None = None,
        exit_code: int | None = None,
        stderr_tail: Sequence[str] = (),
        kind: FailureKind = FailureKind.OTHER,
    ) -> None:
        super().__init__(message, server=server, reach=reach, tool=tool)
        self.kind = kind  # what kind of failure it is
        self.exit_code = exit_code  # of its process; negative: the signal that ended it; None: unknown
        self.stderr_tail: tuple[str, ...] = tuple(stderr_tail)  # the last lines of its stderr that say why


class CallTimeout(CallError):
    """No answer in time. If it was sent, it may still have run."""

    code = "timeout"
    _http_status = 504

    def __init__(
        self, message: str, *, server: str, reach: Reach, tool: str | None = None, timeout: float
    ) -> None:
        super().__init__(message, server=server, reach=reach, tool=tool)
        self.timeout = timeout  # seconds that the call was given


class RemoteError(CallError):
    """The server answered with a JSON-RPC error. `rpc_code`, `rpc_message` and `data` are as the server sent them."""

    def __init__(
        self,
        message: str,
        *,
        server: str,
        rpc_code: int,
        data: Any = None,
        tool: str | None = None,
        http_status: int = 502,
    ) -> None:
        super().__init__(message, server=server, reach=Reach.ANSWERED, tool=tool)
        self.rpc_code = rpc_code  # the `code` of the JSON-RPC error
        self.rpc_message: str = message  # the `message` of the JSON-RPC error
        self.data = data  # the `data` of the JSON-RPC error; None: it has none
        self._http_status = http_status  # 400 when the server refuses the arguments


class ToolFailed(CallError):
    """The tool reports a failure. `ToolResult.or_raise` raises this; `result` has what the tool said."""

    code = "tool_error"
    _http_status = 422

    def __init__(self, message: str, *, server: str, tool: str | None, result: Mapping[str, Any]) -> None:
        super().__init__(message, server=server, reach=Reach.ANSWERED, tool=tool)
        self.result = result  # the result, as the server sent it


class InputRefused(CallError):
    """The server needs more input from its client before it can answer, and did not get it."""

    code = "input_refused"
    _http_status = 422


class ProtocolFault(CallError):
    """The server's answer to this call breaks the protocol (not JSON-RPC, over the line bound, not an object)."""

    code = "protocol_error"
    _http_status = 502


class Bug(CallError):
    """An error in Greenroom's own code. Please report it; the other servers go on."""

    code = "bug"


# ---- How a configuration problem names its place: `mcp.json: mcpServers.github.args[2]` -----------------------------

_PLAIN: Final = lazy_pattern(r"[\w-]+")


def place(source: str, *keys: Any) -> str:
    """The source, then the path of keys inside it. Unusual keys are quoted, positions stand in brackets."""
    path = ""
    for key in keys:
        path += _step(key, first=not path)
    return f"{source}: {path}" if source and path else source or path


def _step(key: Any, *, first: bool) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if isinstance(key, str) and _PLAIN.fullmatch(key):
        return key if first else f".{key}"
    return f"[{key!r}]" if not isinstance(key, str) else '["' + key.replace('"', '\\"') + '"]'
