"""The commands that do something: `call` and `reconnect`.

`call` goes through the running gateway, whose servers are up. Without a gateway it opens a room for that one call. The
server validates the arguments. `k=v` is read by the tool's schema (`protocol.typed_arguments`), for which the server is
asked first if nothing is known of it: so a word means the same however much is known. `k:=v` must be JSON. A word that
begins with `{` is an object with arguments, as `--args` has.

On a terminal an answer is a page, as models get it. Anywhere else it is complete, because scripts read it.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import click
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ..config.model import Config, Isolation
from ..config.references import isolation_of
from ..gateway.doors.control_client import Gateway, GatewayLost
from ..gateway.next_steps import Commands
from ..gateway.result_meta import DETAILS, details_of, note_of, was_alone
from ..protocol.errors import ApprovalDenied, Reach, UsageError
from ..protocol.events import Event, Kind, Lagged, Note, NoteCode
from ..protocol.safe_text import one_line
from .completion import complete_servers, complete_tools
from .config_reading import only_asked_for, read_config
from .interruption import run_to_end
from .json_shapes import AnsweredJson, Object, Shape, SourceJson, says
from .missing_servers import check_usable, say_if_none
from .printing import say, say_at_terminal, show
from .running_gateways import running_gateway, say_elsewhere
from .shared_options import common_options, record_options, recording_in
from .text_wrapping import on_terminal
from .tool_results import show_result
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..actors.event_stream import Subscription
    from ..safety.approval import OnApproval
    from ..tape.recorder import Recorder


class GuardedJson(Shape, kw_only=True):
    """How [long output](mcp-tool.md#long-output) was cut."""

    truncated: Annotated[bool, says("something was cut")]
    original_bytes: Annotated[int, says("the size of all of it", "bytes")]
    original_lines: Annotated[int, says("its lines", "lines")]
    returned_bytes: Annotated[int, says("the size of what is here", "bytes")]
    returned_lines: Annotated[int, says("its lines", "lines")]
    image_blocks_passed_through: Annotated[
        int | UnsetType, says("images, which are not cut", "images", when="there are any")
    ] = UNSET
    full_output_path: Annotated[str | UnsetType, says("the file with all of it", when="it was kept")] = UNSET
    output: Annotated[str | UnsetType, says("its id, for the `mcp` tool", when="it was kept")] = UNSET
    write_error: Annotated[str | UnsetType, says("why it was not kept", when="it was not")] = UNSET


class CalledJson(AnsweredJson, kw_only=True):
    """What a call has answered."""

    mode: Annotated[Literal["call"], says("what was asked for")]
    server: Annotated[str, says("the server that was called")]
    content: Annotated[list[Object], says("the MCP content of the result, as a model sees it, but not cut")]
    tool: Annotated[str | UnsetType, says("the name that was called", when="it is a tool")] = UNSET
    resource_uri: Annotated[str | UnsetType, says("the URI that was read", when="it is a resource")] = UNSET
    mcp_result: Annotated[
        Object | UnsetType,
        says(
            "what the server's result has beside its content, such as `structuredContent`",
            when="it has anything else",
        ),
    ] = UNSET
    output_guard: Annotated[
        GuardedJson | UnsetType,
        says("what was cut", when="the content was too long and its file cannot be read"),
    ] = UNSET
    error: Annotated[
        Literal["tool_error"] | UnsetType, says("exit code 1", when="the tool calls its result an error")
    ] = UNSET


class ReconnectedJson(Shape, kw_only=True):
    """A server that was connected again."""

    server: Annotated[str, says("the server")]
    name: Annotated[str, says("the same; the older word")]
    error: Annotated[str | None, says("why it failed; null: it is connected")]


class ReconnectJson(SourceJson, kw_only=True):
    """Which servers were connected again."""

    servers: Annotated[list[ReconnectedJson], says("those that were up, or the one")]


class _ToolCallCommand(click.Command):
    """A command whose options may be taken for those of the tool."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-")
            what = f"{error.option_name} is not an option of greenroom call. Arguments of a tool are written NAME=VALUE"
            raise click.UsageError(f"{what}: {name}=…", ctx) from None


@click.command("call", cls=_ToolCallCommand)
@click.argument("tool", shell_complete=complete_tools)
@click.argument("pairs", nargs=-1, metavar="[K=V | JSON]...")
@click.option(
    "--args",
    "args_json",
    metavar="JSON",
    help="Arguments as one JSON object. Names that the tool's schema lacks are sent, too.",
)
@click.option(
    "--server",
    metavar="NAME",
    help="The tool's server, when several servers have a tool of that name.",
    shell_complete=complete_servers,
)
@click.option("--yes", is_flag=True, help="Allow the call if it needs somebody's approval.")
@click.option(
    "--save",
    "saved_as",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the first image, sound or file of the answer to FILE.",
)
@record_options
@common_options
def call_command(
    tool: str,
    pairs: tuple[str, ...],
    args_json: str | None,
    server: str | None,
    yes: bool,
    saved_as: Path | None,
    record: Path | None,
    redact: str | None,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Call TOOL with arguments K=V, or with one JSON object.

    V is text if the tool's schema wants text for K, as in name=Ann. Otherwise it is JSON, as in n=5, deep=true or
    ids=[1,2]. If the schema does not say, V is JSON if it can be read as JSON. In K:=V it is always JSON.
    """
    recording = CallTape(recording_in(record, redact))
    config = read_config(config_path)
    gateway = running_gateway(config, pid)
    is_passed_over = gateway is not None and bool(recording.options)
    if gateway is not None and is_passed_over:
        gateway = _passed_over(gateway, pid)
    _check_name(config, tool, pairs, args_json)
    try:
        args, texts = split_pairs(pairs)
        in_json = given_args(args_json)
    except UsageError as error:
        raise UsageError(f"{error.message}\n{_right_call(config, tool, server)}") from None
    names = [name for name in args if any(pair.startswith(f"{name}:=") for pair in pairs)]
    asked = TypedCall(tool, server, {**in_json, **args}, texts, names)
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
        elif details_of(result).get("reason") == "nobody":
            what = (
                "The call needs a person's approval, and there is no terminal to ask on, so it was not sent."
            )
            result = _failed(f"{what} --yes allows the call.", details_of(result))
        else:
            say("there is no terminal to ask on; --yes allows the call.")
    elif gateway is None and details_of(result).get("error") == ApprovalDenied.code:
        result = _refused(result)
    if as_json or not on_terminal():
        result = _in_full(result)
    if recording.tape is not None:
        origin["tape"] = recording.tape
    code = show_result(result, origin, as_json, CalledJson)
    if saved_as is not None:
        code = code or _save(result, saved_as)
    elif not as_json:
        _say_how_to_save(result)
    if (note := note_of(result)) is not None:
        say(note)
    if recording.tape is not None:
        say(f"recorded. To see it: {Commands().about('tape', recording.tape)}")
    is_started = gateway is None and details_of(result).get("error") in (None, "tool_error")
    if is_started and not is_passed_over:  # else a room is there that keeps it warm
        _say_what_keeps_warm(config, details_of(result)["server"])
    elif was_alone(result):
        _say_what_shares(config)
    return code


def _right_call(config: Config, tool: str, server: str | None) -> str:
    """How this tool is called, as far as it is known here which parameters it has."""
    from ..gateway.offline_catalogue import open_catalogue

    step = open_catalogue(config).call_line(tool, server)
    if step is None:
        return f"To see what {tool} takes: {commands_typed().about('describe', tool)}"
    return f"To call it: {commands_typed().filled(step)}"


def _data_in(result: Mapping[str, Any]) -> tuple[str, str] | None:
    """The kind and the base64 of the first image, sound or file of the result, which is shown by its size alone."""
    for block in result["content"]:
        resource: Mapping[str, Any] = block.get("resource") or {}
        data = block.get("data", resource.get("blob"))
        if isinstance(data, str):
            return "file" if block.get("type") == "resource" else str(block.get("type")), data
    return None


def _say_how_to_save(result: Mapping[str, Any]) -> None:
    if (found := _data_in(result)) is not None:
        say(f"the {found[0]} is not shown. To save it, make the call with --save FILE.")


def _save(result: Mapping[str, Any], path: Path) -> int:
    """Write it to the file, and say so. Returns the exit code."""
    found = _data_in(result)
    if found is None:
        say("the answer has no image, sound or file, so nothing was saved. Its text goes to stdout: … > FILE")
        return 1
    try:
        size = path.write_bytes(b64decode(found[1]))
    except (OSError, ValueError) as error:
        say(f"the {found[0]} was not saved: {error}")
        return 1
    say(f"the {found[0]} is in {path} ({size:,} bytes).")
    return 0


def _check_name(config: Config, tool: str, pairs: tuple[str, ...], args_json: str | None) -> None:
    """Raises `UsageError` for a server and a tool of it that were typed as two words."""
    if tool in config.servers and pairs and not any(mark in pairs[0] for mark in "={"):
        from ..catalogue.names import join, prefix_of

        name = join(
            prefix_of(tool, config.servers[tool].tool_prefix or config.settings.tool_prefix), pairs[0]
        )
        options = () if args_json is None else ("--args", args_json)
        step = commands_typed().about("call", name, *pairs[1:], options=options)
        raise UsageError(f'"{tool}" is a server, and the name of a tool is one word. Did you mean: {step}')


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
        text = (
            f"a server that is {what} for a call ends with it. A background gateway keeps it running: {step}"
        )
        say_at_terminal(text, config)


def _say_what_shares(config: Config) -> None:
    """Say on stderr how one process answers all commands, at a gateway where each client has its own."""
    what = "this gateway starts servers for each client apart, and each command counts as a client"
    how = 'To share one process, write "isolation": "persistent" into its entry'
    say_at_terminal(f"{what}: the server has ended with this call. {how}.", config)


@click.command("reconnect")
@click.argument("server", required=False, shell_complete=complete_servers)
@common_options
def reconnect_command(server: str | None, config_path: Path | None, pid: int | None, as_json: bool) -> int:
    """Restart SERVER, or every server that is up, in the running gateway.

    Calls in flight may finish first (drainTimeoutMs). A SERVER that is connecting starts over, except on its first
    start, which may finish, because it may install something. A SERVER that does not run is started.
    """
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
    show(
        "\n".join(lines),
        {"servers": servers, "source": "gateway", "pid": gateway.pid},
        as_json,
        ReconnectJson,
    )
    if not as_json:
        from .refresh_command import say_why

        say_why([one["name"] for one in servers if one["error"]])
    return int(any(one["error"] for one in servers))


@attrs.define
class CallTape:
    """`--record`: what `Greenroom.open` is given for it, nothing without it; and the tape, once there is one."""

    options: Mapping[str, Any]
    tape: str | None = None


@attrs.frozen
class TypedCall:
    """The call as the person typed it."""

    tool: str
    server: str | None
    args: Mapping[str, Any]
    texts: Mapping[str, str]  # further ones, whose types the tool's schema tells
    names: Sequence[str]  # of `args`, those that were typed as K:=V

    def request(self) -> dict[str, Any]:
        """The request to the `mcp` tool."""
        where = {} if self.server is None else {"server": self.server}
        return {"tool": self.tool, "args": self.args, **where}


def split_pairs(pairs: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """`k=v`, `k:=v` and `{…}` words: the arguments that say their type, and the texts of the others, which the schema
    of the tool tells. What stands in an object as well is what was typed later. Raises `UsageError` for a word that is
    none of them, and for a key that was typed twice."""
    from ..protocol.typed_arguments import decode_json

    found: dict[str, Any] = {}
    texts: dict[str, str] = {}
    typed: set[str] = set()
    for pair in pairs:
        if pair.lstrip().startswith("{"):
            given = given_args(pair)
        else:
            key, equals, text = pair.partition("=")
            is_json, key = key.endswith(":"), key.removesuffix(":")
            if not equals or not key:
                raise UsageError(f'"{pair}" is not K=V, as in count=5.')
            if key in typed:
                raise UsageError(f"{key} was given twice. Leave one of them out.")
            typed.add(key)
            if not is_json:
                found.pop(key, None)
                texts[key] = text
                continue
            try:
                given = {key: decode_json(text)}
            except ValueError as error:
                raise UsageError(f'"{pair}": what follows := is not JSON: {error}. Use = for text.') from None
        found |= given
        for key in given:
            texts.pop(key, None)
    return found, texts


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
    if gateway is None or not _has_terminal():
        return None
    from .terminal_answers import Person

    return run_to_end(partial(Person().allows, text))


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
    return {
        **result,
        "content": [{"type": "text", "text": text}, *others],
        "_meta": {**result["_meta"], DETAILS: kept},
    }


def _failed(text: str, details: Mapping[str, Any]) -> Mapping[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": True, "_meta": {DETAILS: {**details, "message": text}}}


def _call_through(gateway: Gateway, asked: TypedCall, **answer: bool) -> Mapping[str, Any]:
    """Call through the gateway. If the gateway is lost, it may have sent the call, and the error says so, so that
    nobody just repeats it."""
    try:
        if _has_terminal():
            answer["asks"] = True
        names = {"names": asked.names} if asked.names else {}
        return gateway.ask("mcp", arguments=asked.request(), texts=asked.texts, **names, **answer)
    except GatewayLost as lost:
        text = lost.message if lost.reach is Reach.NOT_SENT else f"{lost.why}; {lost.reach.words}."
        server = {} if asked.server is None else {"server": asked.server}
        details = {"mode": "call", **server, "tool": asked.tool, "error": lost.code, "reach": str(lost.reach)}
        return _failed(text, details)
    except KeyboardInterrupt:
        _say_interrupted(Reach.SENT)  # as far as anybody knows here
        raise


def _say_interrupted(reach: Reach) -> None:
    say(f"interrupted: {reach.words}.")


def _call_in_own_room(
    config: Config, asked: TypedCall, recording: CallTape, **answer: bool
) -> Mapping[str, Any]:
    """Call in a room for this call alone. On a terminal it asks there by itself whether the call may be sent."""
    return run_to_end(partial(_call_once, config, asked, recording, answer.get("allowed", False)))


async def _call_once(
    config: Config, asked: TypedCall, recording: CallTape, allowed: bool
) -> Mapping[str, Any]:
    import anyio

    from ..gateway.control_methods import allowing, ask_typed
    from ..gateway.event_log import follow
    from ..gateway.exposures.mcp_tool import McpTool
    from ..gateway.exposures.tool_definition import FOR_PEOPLE
    from ..supervisor.attachments import TAPE
    from ..supervisor.room import Greenroom, port_of

    result: Mapping[str, Any] = {}
    on_approval: OnApproval | None = allowing if allowed else None
    on_elicitation = None
    if _has_terminal():
        from .terminal_answers import Person

        person = Person()
        on_approval = on_approval or person.decide
        on_elicitation = person.answer
    opened = Greenroom.open(patient(config), bootstrap=False, **recording.options)
    async with opened.events([Kind.CALL]) as ends:
        try:
            async with (
                opened as room,
                room.session("command", on_approval=on_approval, on_elicitation=on_elicitation) as session,
                anyio.create_task_group() as telling,
            ):
                await telling.start(partial(follow, room, [_tell_progress], kinds=[Kind.NOTE]))
                recorder: Recorder | None = port_of(room).services.attachment(TAPE)
                recording.tape = None if recorder is None else str(recorder.path)
                tool = McpTool(port_of(session), hints=FOR_PEOPLE)
                result = await ask_typed(tool, port_of(session), asked.request(), asked.texts, asked.names)
                telling.cancel_scope.cancel()
        except* KeyboardInterrupt:
            ends.close()
            _say_interrupted(await _reach_of(ends))
            raise
    return result


async def _reach_of(ends: Subscription) -> Reach:
    """How far the call got, once the room has closed. A call that never began was not sent."""
    reach = Reach.NOT_SENT
    async for event in ends:
        reach = Reach.SENT if isinstance(event, Lagged) else getattr(event, "reach", reach)
    return reach


def patient(config: Config) -> Config:
    """The configuration of a room for one call. A server that is installed for it would end with the room, so the call
    waits as long as an install may take, unless the configuration says how long calls wait."""
    config = only_asked_for(config)
    if "queue_timeout" in config.setting_sources:
        return config
    longest = max(config.settings.queue_timeout, config.settings.install_timeout)
    return replace(config, settings=replace(config.settings, queue_timeout=longest))


def _tell_progress(event: Event | Lagged) -> None:
    """Show progress to the person who waits."""
    if isinstance(event, Note) and event.code is NoteCode.INSTALLING:
        say(one_line(f"{event.server}: {event.detail}"))


def _reconnected(one: Mapping[str, Any]) -> str:
    name, error = one["name"], one["error"]
    known = f'Failed to connect to "{name}": '  # which server it is stands before it
    return f"✗ {name}: {error.removeprefix(known)}" if error else f"✓ {name}"
