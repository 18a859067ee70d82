"""The commands that do something: `call` and `reconnect`.

`call` goes through the running gateway, whose servers are up. Without a gateway it opens a room for that one call. The
server validates the arguments. `k=v` is read as JSON if it is valid JSON (`n=5`, `deep=true`, `ids=[1,2]`), and as text
otherwise; `k:=v` must be JSON. So text that looks like JSON is written in quotes: `zip='"01234"'`. A word that begins
with `{` is an object with arguments, as `--args` has. What is sent depends only on what was typed, and not on what is
known of the tool.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from ..config.model import Config, Isolation
from ..gateway.doors.control_client import Gateway, GatewayLost
from ..gateway.result_meta import DETAILS, details_of
from ..protocol.errors import ApprovalDenied, Reach, UsageError
from ..protocol.events import Event, Kind, Lagged, Note, NoteCode
from ..protocol.safe_text import one_line, printable
from .common import (
    check_usable,
    commands_typed,
    common_options,
    read_config,
    run_to_end,
    running_gateway,
    say,
    say_elsewhere,
    show_result,
)
from .completion import complete_servers, complete_tools
from .tables import show_lines


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
@common_options
def call_command(
    tool: str,
    pairs: tuple[str, ...],
    args_json: str | None,
    server: str | None,
    yes: bool,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Call TOOL with arguments K=V, or with one JSON object.

    V is read as JSON if it is valid JSON, as in n=5 or deep=true, and as text otherwise. Quote text that looks like
    JSON: zip='"01234"'. With K:=V, V must be JSON.
    """
    asked = ToolCall(tool, server, {**given_args(args_json), **split_pairs(pairs)})
    config = read_config(config_path)
    gateway = running_gateway(config, pid)
    if gateway is None:
        origin: Mapping[str, Any] = {"source": "room", **say_elsewhere(config)}
        call = partial(_call_in_own_room, config, asked)  # with allowed=True, if somebody has allowed it
    else:
        origin = {"source": "gateway", "pid": gateway.pid}
        call = partial(_call_through, gateway, asked)
    result = call(allowed=True) if yes else call()
    if not yes and (text := _question_in(result)) is not None:
        is_allowed = _is_allowed(text)
        if is_allowed:
            result = call(allowed=True)
        elif is_allowed is not None:
            result = _refused(result)
    is_done = show_result(result, origin, as_json)
    if gateway is None and details_of(result).get("error") in (None, "tool_error"):  # its server was started
        _say_what_keeps_warm(config, details_of(result)["server"])
    return 0 if is_done else 1


def _say_what_keeps_warm(config: Config, server: str) -> None:
    """Nothing does if each session or call has a process of its own: a command has a session of its own, too."""
    definition = config.servers[server]
    if (definition.isolation or config.settings.isolation or Isolation.PERSISTENT) is Isolation.PERSISTENT:
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


@attrs.frozen
class ToolCall:
    """The call, as it was typed."""

    tool: str
    server: str | None
    args: Mapping[str, Any]

    def request(self) -> dict[str, Any]:
        """The request to the `mcp` tool."""
        where = {} if self.server is None else {"server": self.server}
        return {"tool": self.tool, "args": self.args, **where}


def split_pairs(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`k=v`, `k:=v` and `{…}` words as arguments. Of two for one key the later counts. Raises `UsageError` for a word
    that is none of them."""
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
            found[key] = _json(text)
        except ValueError as error:
            if is_json:
                raise UsageError(f'"{pair}": what follows := is not JSON: {error}. Use = for text.') from None
            found[key] = text
    return found


def given_args(text: str | None) -> Mapping[str, Any]:
    """`--args`. Raises `UsageError` unless it is a JSON object."""
    from ..gateway.exposures.tool_definition import parse_args

    return parse_args(text) or {}


def _json(text: str) -> Any:
    """Raises `ValueError` for text that is not JSON, such as NaN, and for a number too large for a float."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large")
    return number


def _question_in(result: Mapping[str, Any]) -> str | None:
    """What a person is asked before this call is sent. None: nobody has to be."""
    details = details_of(result)
    return details.get("question") if details.get("error") == "approval_required" else None


def _is_allowed(text: str) -> bool | None:
    """Ask on the terminal. None: nobody is there."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        say("there is no terminal to ask on; --yes allows the call.")
        return None
    return click.confirm(printable(text), err=True)


def _refused(asking: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of a call that the person at the terminal did not allow, when `asking` said that it has to be."""
    kept = {key: value for key, value in details_of(asking).items() if key not in ("reason", "question")}
    text = "The call was not allowed: you refused it; it was not sent."
    return _failed(text, {**kept, "error": ApprovalDenied.code})


def _failed(text: str, details: Mapping[str, Any]) -> Mapping[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": True, "_meta": {DETAILS: {**details, "message": text}}}


def _call_through(gateway: Gateway, asked: ToolCall, **allowed: bool) -> Mapping[str, Any]:
    """Call through the gateway. One that is lost may have sent the call: who is told so does not just repeat it."""
    try:
        return gateway.ask("mcp", arguments=asked.request(), **allowed)
    except GatewayLost as lost:
        text = lost.message if lost.reach is Reach.NOT_SENT else f"{lost.why}; {lost.reach.words}."
        server = {} if asked.server is None else {"server": asked.server}
        details = {"mode": "call", **server, "tool": asked.tool, "error": lost.code, "reach": str(lost.reach)}
        return _failed(text, details)


def _call_in_own_room(config: Config, asked: ToolCall, *, allowed: bool = False) -> Mapping[str, Any]:
    return run_to_end(partial(_call_once, config, asked, allowed))


async def _call_once(config: Config, asked: ToolCall, allowed: bool) -> Mapping[str, Any]:
    import anyio

    from ..gateway.commands import allowing
    from ..gateway.event_log import follow
    from ..gateway.exposures.mcp_tool import McpTool, ask
    from ..gateway.exposures.tool_definition import FOR_PEOPLE
    from ..supervisor.room import Greenroom, port_of

    result: Mapping[str, Any] = {}
    async with (
        Greenroom.open(patient(config), bootstrap=False) as room,
        room.session("command", on_approval=allowing if allowed else None) as session,
        anyio.create_task_group() as telling,
    ):
        await telling.start(partial(follow, room, [_tell_progress], kinds=[Kind.NOTE]))
        tool = McpTool(port_of(session), hints=FOR_PEOPLE)
        result = await ask(tool, asked.request())
        telling.cancel_scope.cancel()
    return result


def patient(config: Config) -> Config:
    """A server that is installed for this call would end with the room of this call. So the call waits as long as an
    install may take, unless the configuration says how long calls wait."""
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
