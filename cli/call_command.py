"""The commands that do something: `call` and `reconnect`.

`call` goes through the running gateway, whose servers are up. Without a gateway it opens a room for that one call. The
server validates the arguments. `k=v` is read as JSON (`n=5`, `deep=true`, `ids=[1,2]`) if it is JSON of a type that the
tool's schema allows for k, and as text otherwise; so `text=5` sends text to a parameter that is a string. If nothing is
known of the tool or of k, JSON is read as JSON. `k:=v` must be JSON. A word that begins with `{` is an object with
arguments, as `--args` has.

On a terminal an answer is a page, as models get it. Anywhere else it is complete, because scripts read it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import click

from ..config.model import Config, Isolation
from ..config.references import isolation_of
from ..gateway.doors.control_client import Gateway, GatewayLost
from ..gateway.next_steps import Commands
from ..gateway.result_meta import DETAILS, details_of
from ..protocol.errors import ApprovalDenied, Reach, UsageError
from ..protocol.events import Event, Kind, Lagged, Note, NoteCode
from ..protocol.safe_text import one_line
from .common import (
    FromGateway,
    check_usable,
    commands_typed,
    common_options,
    from_cache,
    read_config,
    record_options,
    recording_in,
    run_to_end,
    running_gateway,
    say,
    say_elsewhere,
    say_if_none,
    show_result,
)
from .completion import complete_servers, complete_tools
from .tables import show_lines
from .wrapping import on_terminal

if TYPE_CHECKING:
    from ..safety.approval import OnApproval


_JSON_TYPES: Final[Mapping[type, tuple[str, ...]]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    type(None): ("null",),
    list: ("array",),
    dict: ("object",),
}


@click.command("call")
@click.argument("tool", shell_complete=complete_tools)
@click.argument("pairs", nargs=-1, metavar="[K=V | JSON]...")
@click.option("--args", "args_json", metavar="JSON", help="All arguments as one JSON object.")
@click.option(
    "--server",
    help="The tool's server, when several servers have a tool of that name.",
    shell_complete=complete_servers,
)
@click.option("--yes", is_flag=True, help="Allow the call if somebody has to (see docs/approval.md).")
@record_options
@common_options
def call_command(
    tool: str,
    pairs: tuple[str, ...],
    args_json: str | None,
    server: str | None,
    yes: bool,
    record: Path | None,
    redact: str | None,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Call TOOL with arguments K=V, or with one JSON object.

    V is read as the tool's schema says of K: as text where a string is expected, and as JSON where n=5, deep=true or
    ids=[1,2] is. If nothing is known of K, V is JSON if it is valid JSON. With K:=V, V must be JSON.
    """
    recording = Recording(recording_in(record, redact))
    config = read_config(config_path)
    gateway = running_gateway(config, pid)
    if gateway is not None and recording.options:
        gateway = _passed_over(gateway, pid)
    schemas = cache(partial(_schemas, config, gateway, tool, server))
    asked = ToolCall(tool, server, {**given_args(args_json), **split_pairs(pairs, schemas)})
    if gateway is None:
        say_if_none(config)
        origin: dict[str, Any] = {"source": "room", **say_elsewhere(config)}
        call = partial(_call_in_own_room, config, asked, recording)
    else:
        origin = {"source": "gateway", "pid": gateway.pid}
        call = partial(_call_through, gateway, asked)
    result = call(allowed=True) if yes else call()
    if not yes and (text := _question_in(result)) is not None:
        is_allowed = _is_allowed(text, gateway)
        if is_allowed:
            result = call(allowed=True)
        elif is_allowed is not None:
            result = _refused(call(refused=True))
        elif _has_terminal():
            result = _refused(result)
    elif gateway is None and details_of(result).get("error") == ApprovalDenied.code:
        result = _refused(result)
    if as_json or not on_terminal():
        result = _in_full(result)
    if recording.tape is not None:
        origin["tape"] = recording.tape
    is_done = show_result(result, origin, as_json)
    if recording.tape is not None:
        say(f"recorded. To see it: {Commands().about('tape', recording.tape)}")
    if gateway is None and details_of(result).get("error") in (None, "tool_error"):  # its server was started
        _say_what_keeps_warm(config, details_of(result)["server"])
    return 0 if is_done else 1


def _passed_over(gateway: Gateway, pid: int | None) -> None:
    """No gateway, for a call that is to be recorded: only the room that makes a call can record it."""
    if pid is not None:
        text = "--record makes the call in a room of its own, and --pid in a gateway. Leave one of them out."
        raise UsageError(text)
    say(
        f"the running gateway (process {gateway.pid}) is passed over: a call that is recorded is made in a room of its "
        "own, which starts the server once more."
    )


def _say_what_keeps_warm(config: Config, server: str) -> None:
    """Say on stderr how the server can be kept warm. Nothing can if each session or call has a process of its own,
    because a command has a session of its own too."""
    definition = config.servers[server]
    if isolation_of(definition, config.settings) is Isolation.PERSISTENT:
        what = "started" if definition.command is not None else "connected"
        step = commands_typed().about("serve", options=("--background",))
        say(f"the server was {what} for this call alone. A background room would keep it warm: {step}")


@click.command("reconnect")
@click.argument("server", required=False, shell_complete=complete_servers)
@common_options
def reconnect_command(server: str | None, config_path: Path | None, pid: int | None, as_json: bool) -> int:
    """Connect SERVER again, or every server that is up, in the running gateway."""
    config = read_config(config_path)
    gateway = running_gateway(config, pid)
    if gateway is None:
        if server is not None:
            check_usable(config, server)
        step = commands_typed().about("refresh", *(() if server is None else (server,)))
        say(
            f"no gateway runs for this configuration, so nothing is connected. To ask servers what they have: {step}"
        )
        say_elsewhere(config)
        return 1
    servers: list[Mapping[str, Any]] = gateway.ask("reconnect", server=server)["servers"]
    lines = [_reconnected(one) for one in servers] or ["No server was connected; nothing to do."]
    show_lines(lines, {"servers": servers, "source": "gateway", "pid": gateway.pid}, as_json)
    return int(any(one["error"] for one in servers))


@attrs.define
class Recording:
    """`--record`: what `Greenroom.open` is given for it, nothing without it; and the tape, once there is one."""

    options: Mapping[str, Any]
    tape: str | None = None


@attrs.frozen
class ToolCall:
    """The call as the person typed it."""

    tool: str
    server: str | None
    args: Mapping[str, Any]

    def request(self) -> dict[str, Any]:
        """The request to the `mcp` tool."""
        where = {} if self.server is None else {"server": self.server}
        return {"tool": self.tool, "args": self.args, **where}


def split_pairs(
    pairs: tuple[str, ...], schemas: Callable[[], Mapping[str, Any]] = dict[str, Any]
) -> dict[str, Any]:
    """`k=v`, `k:=v` and `{…}` words as arguments. Of two for one key the later counts. `schemas` returns those of the
    tool's parameters, as far as they are known. Raises `UsageError` for a word that is none of them."""
    from ..gateway.exposures.tool_definition import decode_json

    found: dict[str, Any] = {}
    for pair in pairs:
        if pair.lstrip().startswith("{"):
            found |= given_args(pair)
            continue
        key, equals, text = pair.partition("=")
        is_json, key = key.endswith(":"), key.removesuffix(":")
        if not equals or not key:
            raise UsageError(f'"{pair}" is not K=V. Write, for example: greenroom call TOOL path=/tmp')
        try:
            value = decode_json(text)
        except ValueError as error:
            if is_json:
                raise UsageError(f'"{pair}": what follows := is not JSON: {error}. Use = for text.') from None
            found[key] = text
        else:
            found[key] = value if is_json or _allows(schemas().get(key), value) else text
    return found


def _schemas(config: Config, gateway: Gateway | None, tool: str, server: str | None) -> Mapping[str, Any]:
    """The schemas of the tool's parameters, from the gateway or the cache; nothing is started for them."""
    source = from_cache(config) if gateway is None else FromGateway(gateway)
    asked = {"describe": tool} | ({} if server is None else {"server": server})
    details = details_of(source.look(asked))
    return _object(_object(_object(details.get("tool")).get("inputSchema")).get("properties"))


def _allows(schema: object, value: object) -> bool:
    """Whether a parameter may have a value of this JSON type, as far as its schema says."""
    types = {*_types(schema)}
    return not types or not types.isdisjoint(_JSON_TYPES[type(value)])


def _types(schema: object) -> Iterator[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    said = _object(schema)
    match said.get("type"):
        case str(one):
            yield one
        case list():
            yield from (each for each in _list(said["type"]) if isinstance(each, str))
        case _:
            parts = [[*_types(part)] for key in ("anyOf", "oneOf") for part in _list(said.get(key))]
            if all(parts):
                yield from (each for part in parts for each in part)


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()


def given_args(text: str | None) -> Mapping[str, Any]:
    """`--args`. Raises `UsageError` unless it is a JSON object."""
    from ..gateway.exposures.tool_definition import parse_args

    return parse_args(text) or {}


def _question_in(result: Mapping[str, Any]) -> str | None:
    """The question that a person is asked before this call is sent. None: nobody has to be asked."""
    details = details_of(result)
    return details.get("question") if details.get("error") == "approval_required" else None


def _has_terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _is_allowed(text: str, gateway: Gateway | None) -> bool | None:
    """Ask on the terminal whether the call may be sent. None: nobody is there to answer, or nobody answers. Without a
    `gateway`, our own room has asked there already."""
    is_allowed = None
    if not _has_terminal():
        say("there is no terminal to ask on; --yes allows the call.")
    elif gateway is not None:
        from .terminal_answers import Person

        is_allowed = run_to_end(partial(Person().allows, text))
    return is_allowed


def _refused(asking: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of a call that the person at the terminal did not allow, when `asking` said that it has to be."""
    kept = {key: value for key, value in details_of(asking).items() if key not in ("reason", "question")}
    text = "You did not allow the call, so it was not sent."
    return _failed(text, {**kept, "error": ApprovalDenied.code})


def _in_full(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result with its whole text, if the text was cut and kept in a file."""
    kept = {**details_of(result)}
    path = kept.pop("outputGuard", {}).get("fullOutputPath")
    if path is None:
        return result
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:  # the answer says where it should be
        return result
    others = [block for block in result["content"] if block.get("type") != "text"]
    return {**result, "content": [{"type": "text", "text": text}, *others], "_meta": {DETAILS: kept}}


def _failed(text: str, details: Mapping[str, Any]) -> Mapping[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": True, "_meta": {DETAILS: {**details, "message": text}}}


def _call_through(gateway: Gateway, asked: ToolCall, **answer: bool) -> Mapping[str, Any]:
    """Call through the gateway. If the gateway is lost, it may have sent the call, and the error says so, so that
    nobody just repeats it."""
    try:
        if _has_terminal():
            answer["asks"] = True
        return gateway.ask("mcp", arguments=asked.request(), **answer)
    except GatewayLost as lost:
        text = lost.message if lost.reach is Reach.NOT_SENT else f"{lost.why}; {lost.reach.words}."
        server = {} if asked.server is None else {"server": asked.server}
        details = {"mode": "call", **server, "tool": asked.tool, "error": lost.code, "reach": str(lost.reach)}
        return _failed(text, details)


def _call_in_own_room(
    config: Config, asked: ToolCall, recording: Recording, **answer: bool
) -> Mapping[str, Any]:
    """Call in a room for this call alone. On a terminal it asks there by itself whether the call may be sent."""
    return run_to_end(partial(_call_once, config, asked, recording, answer.get("allowed", False)))


async def _call_once(
    config: Config, asked: ToolCall, recording: Recording, allowed: bool
) -> Mapping[str, Any]:
    import anyio

    from ..gateway.commands import allowing
    from ..gateway.event_log import follow
    from ..gateway.exposures.mcp_tool import McpTool, ask
    from ..gateway.exposures.tool_definition import FOR_PEOPLE
    from ..supervisor.room import Greenroom, port_of

    result: Mapping[str, Any] = {}
    on_approval: OnApproval | None = allowing if allowed else None
    on_elicitation = None
    if _has_terminal():
        from .terminal_answers import Person

        person = Person()
        on_approval = on_approval or person.decide
        on_elicitation = person.answer
    async with (
        Greenroom.open(patient(config), bootstrap=False, **recording.options) as room,
        room.session("command", on_approval=on_approval, on_elicitation=on_elicitation) as session,
        anyio.create_task_group() as telling,
    ):
        await telling.start(partial(follow, room, [_tell_progress], kinds=[Kind.NOTE]))
        recorder = port_of(room).runtime.recorder
        recording.tape = None if recorder is None else str(recorder.path)
        tool = McpTool(port_of(session), hints=FOR_PEOPLE)
        result = await ask(tool, asked.request())
        telling.cancel_scope.cancel()
    return result


def patient(config: Config) -> Config:
    """The configuration with enough patience for an install: a server that is installed for this call would end with
    the room of this call. So the call waits as long as an install may take, unless the configuration says how long
    calls wait."""
    if "queue_timeout" in config.setting_sources:
        return config
    longest = max(config.settings.queue_timeout, config.settings.install_timeout)
    return attrs.evolve(config, settings=attrs.evolve(config.settings, queue_timeout=longest))


def _tell_progress(event: Event | Lagged) -> None:
    """Show progress to the person who waits."""
    if isinstance(event, Note) and event.code is NoteCode.INSTALLING:
        say(one_line(f"{event.server}: {event.detail}"))


def _reconnected(one: Mapping[str, Any]) -> str:
    return f"✗ {one['name']}: {one['error']}" if one["error"] else f"✓ {one['name']}"
