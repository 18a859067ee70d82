"""The commands that only look: `tools`, `search`, `describe`. They start nothing.

On a terminal the first two print tables (`tables`); the plain text is the same for every window.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from msgspec import UNSET, UnsetType

from ..gateway.result_meta import details_of
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted, one_line, tools_in_words
from . import tables, text_wrapping
from .answer_sources import Source, open_source
from .completion import complete_servers, complete_tools
from .config_reading import is_about, read_config
from .json_shapes import AnsweredJson, Object, OriginJson, RefusedJson, Shape, UnknownJson, says
from .missing_servers import left_out, no_such_server
from .printing import say, show, show_json
from .shared_options import common_options, config_option, json_option
from .tool_results import exit_code_of, show_result, text_of


class ToolJson(Shape, kw_only=True):
    """A tool, a resource that is offered as one, or a skill."""

    name: Annotated[str, says("the name that it is called by")]
    server: Annotated[str, says("its server")]
    kind: Annotated[Literal["tool", "resource", "skill"], says("what it is at its server")]
    original: Annotated[str, says("its server's own name for it, or its URI")]
    description: Annotated[str, says('"" without one')]
    input_schema: Annotated[
        Object | UnsetType, says("the JSON Schema of its arguments", when="it is a tool")
    ] = UNSET
    title: Annotated[str | UnsetType, says("as the server says", when="the server says it")] = UNSET
    annotations: Annotated[Object | UnsetType, says("as the server says", when="the server says it")] = UNSET
    files: Annotated[
        list[str] | UnsetType | None,
        says("its files; null: they are made for each reader", when="it is a skill that may be read"),
    ] = UNSET
    output_schema: Annotated[
        Object | UnsetType, says("the JSON Schema of its structured result", when="the server says it")
    ] = UNSET
    changed: Annotated[
        list[str] | UnsetType,
        says("the parts that its owner has not accepted", when="it cannot be called for that"),
    ] = UNSET
    faults: Annotated[
        list[str] | UnsetType,
        says("what clients would refuse in it, and is corrected here", when="there is any"),
    ] = UNSET
    hidden: Annotated[
        str | UnsetType, says("which characters that nobody sees were taken out", when="there were any")
    ] = UNSET


class ToolsJson(OriginJson, kw_only=True):
    """The tools that are known, sorted by name, and behind them the skills."""

    mode: Annotated[Literal["tools"], says("what was asked for")]
    server: Annotated[str | None, says("whose they are; null: all servers'")]
    tools: Annotated[list[ToolJson], says("the tools and skills")]
    count: Annotated[int, says("how many they are", "tools")]
    unknown_servers: Annotated[
        list[UnknownJson] | UnsetType, says("servers that may have more", when="there are any")
    ] = UNSET
    message: Annotated[
        str | UnsetType,
        says("what to do about those, and about servers that are not used", when="there are any"),
    ] = UNSET
    error: Annotated[
        Literal["not_known_yet"] | UnsetType, says("exit code 1", when="the one server is such a one")
    ] = UNSET


class MatchJson(Shape, kw_only=True):
    """A tool or skill that was found."""

    server: Annotated[str, says("its server")]
    tool: Annotated[str | UnsetType, says("the name that it is called by", when="it is a tool")] = UNSET
    skill: Annotated[str | UnsetType, says("the name that it is read by", when="it is a skill")] = UNSET
    score: Annotated[float, says("how well it fits: more is better, and only to be compared in one answer")]


class FoundJson(AnsweredJson, kw_only=True):
    """What a search has found, the best first."""

    mode: Annotated[Literal["search"], says("what was asked for")]
    query: Annotated[str, says("the words, shortened if they are long")]
    matches: Annotated[list[MatchJson], says("this page of them")]
    count: Annotated[int, says("all matches", "tools")]
    has_more: Annotated[bool, says("there are more after this page")]
    next_offset: Annotated[int | None, says("the `--offset` of the next page", "tools")]
    connecting_servers: Annotated[
        list[str] | UnsetType, says("servers that are connecting now", when="there are any")
    ] = UNSET
    unknown_servers: Annotated[
        list[UnknownJson] | UnsetType, says("servers that may have more", when="there are any")
    ] = UNSET


class DescribedJson(AnsweredJson, kw_only=True):
    """One tool or skill."""

    mode: Annotated[Literal["describe"], says("what was asked for")]
    server: Annotated[str, says("its server")]
    tool: Annotated[ToolJson | UnsetType, says("the tool", when="it is a tool")] = UNSET
    skill: Annotated[ToolJson | UnsetType, says("the skill", when="it is a skill")] = UNSET


class SourcesJson(Shape, kw_only=True):
    """Where each key is from."""

    mcp_servers: Annotated[dict[str, dict[str, str]], says("the file of each key, by server")]
    settings: Annotated[dict[str, str], says("the file of each setting, or `default`")]


class ConfigurationJson(Shape, kw_only=True):
    """The effective configuration, without secrets."""

    files: Annotated[list[str], says("the files that it is made of, the strongest first")]
    unread: Annotated[list[str], says("those of them that cannot be read")]
    untrusted: Annotated[list[str], says("those of them that are not obeyed")]
    mcp_servers: Annotated[dict[str, Object], says("the servers, by the keys of [a file](configuration.md)")]
    settings: Annotated[Object, says("the settings, by the same keys and units")]
    sources: Annotated[SourcesJson, says("where each key is from")]
    broken: Annotated[dict[str, str], says("servers that cannot be used, and why")]
    problems: Annotated[list[str], says("warnings")]


class OutputsJson(Shape, kw_only=True):
    """The files of long output."""

    directory: Annotated[str, says("where they are")]
    outputs: Annotated[list[OutputJson], says("the files")]
    bytes: Annotated[int, says("the size of all", "bytes")]


class OutputJson(Shape, kw_only=True):
    """A file of long output."""

    id: Annotated[str, says("its id, for the `mcp` tool")]
    path: Annotated[str, says("the file")]
    bytes: Annotated[int, says("its size", "bytes")]
    age_seconds: Annotated[float, says("since it was written", "s")]


class ClearedJson(Shape, kw_only=True):
    """What was removed."""

    removed: Annotated[int, says("how many", "files")]


@click.command("tools")
@click.argument("server", required=False, shell_complete=complete_servers)
@click.option(
    "--server", "named", metavar="NAME", help="Another way to give SERVER.", shell_complete=complete_servers
)
@common_options
def tools_command(
    server: str | None, named: str | None, config_path: Path | None, pid: int | None, as_json: bool
) -> int:
    """List the tools of all servers, or of SERVER."""
    if server is not None and named not in (None, server):
        raise UsageError(f'Two servers are named: "{server}" and "{named}". Name one.')
    server = server or named
    config = read_config(config_path)
    source = open_source(config_path, pid, config)
    details = source.tools(server)
    if server is None and pid is None and (unused := [*left_out(config)]):
        details["message"] = "\n".join([*filter(None, [details.get("message")]), *unused])
    if "error" in details and not as_json:
        say(details["message"])
    elif details.get("tools") and not as_json and text_wrapping.on_terminal():
        _print_tools(details)
    else:
        show("\n".join(_tool_lines(details)), {**details, **source.origin}, as_json, ToolsJson, RefusedJson)
    return exit_code_of(details)


@click.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option("--regex", is_flag=True, help="Read WORDS as a regular expression.")
@click.option("--server", metavar="NAME", help="Only tools of this server.", shell_complete=complete_servers)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    metavar="N",
    help="Show at most this many.",
)
@click.option("--offset", type=click.IntRange(0), default=0, metavar="N", help="Skip the first N.")
@click.option("--schemas", is_flag=True, help="Show each tool's parameters.")
@common_options
def search_command(
    words: tuple[str, ...],
    regex: bool,
    server: str | None,
    limit: int,
    offset: int,
    schemas: bool,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Find tools by WORDS, the best match first."""
    source = open_source(config_path, pid)
    request: dict[str, Any] = {"search": " ".join(words), "regex": regex, "includeSchemas": schemas}
    request |= {"limit": limit, "offset": offset}
    if server is not None:
        request["server"] = server
    result = source.look(request)
    details = details_of(result)
    if details.get("matches") and not (schemas or as_json) and text_wrapping.on_terminal():
        _print_matches(source, text_of(result), details["matches"])
        return 0
    return show_result(result, source.origin, as_json, FoundJson)


@click.command("describe")
@click.argument("tool", shell_complete=complete_tools)
@click.option(
    "--server",
    metavar="NAME",
    help="The tool's server, when several servers have a tool of that name.",
    shell_complete=complete_servers,
)
@common_options
def describe_command(
    tool: str, server: str | None, config_path: Path | None, pid: int | None, as_json: bool
) -> int:
    """Show TOOL and its parameters."""
    source = open_source(config_path, pid)
    request = {"describe": tool} | ({"server": server} if server is not None else {})
    return show_result(source.look(request), source.origin, as_json, DescribedJson)


def _tool_lines(details: Mapping[str, Any]) -> Iterator[str]:
    for tool in details.get("tools", ()):
        yield _named(tool)
    yield from _total(details)


def _total(details: Mapping[str, Any]) -> Iterator[str]:
    kinds = [tool.get("kind") for tool in details.get("tools", ())]
    skills, resources = kinds.count("skill"), kinds.count("resource")
    yield f"Total: {tools_in_words(details.get('count', 0) - skills - resources, resources)}" + (
        f", {counted(skills, 'skill')}" if skills else ""
    )
    if "message" in details:
        yield details["message"]


def _named(tool: Mapping[str, Any]) -> str:
    return f"{tool['name']} (skill)" if tool.get("kind") == "skill" else tool["name"]


def _print_tools(details: Mapping[str, Any]) -> None:
    """The tools below their servers, each with one line of its description."""

    def server_of(tool: Mapping[str, Any]) -> str:
        return str(tool["server"])

    by_server = groupby(sorted(details["tools"], key=server_of), key=server_of)  # they stay sorted by name
    groups = [
        (server, [(_named(tool), tool["description"]) for tool in tools]) for server, tools in by_server
    ]
    screen = tables.console()
    tables.print_names(screen, ("tool", "what it does"), groups)
    screen.print(tables.prose("\n".join(("", *_total(details))), screen.width), soft_wrap=True)


def _print_matches(source: Source, text: str, matches: Sequence[Mapping[str, Any]]) -> None:
    """`text` with a table in place of its list, the second of its paragraphs."""
    entries: list[tuple[str, str]] = []
    for match in matches:
        name = match.get("tool") or match["skill"]
        said = details_of(source.look({"describe": name, "server": match["server"]}))
        tool: Mapping[str, Any] = said.get("tool") or said.get("skill") or {}
        entries.append((_named(tool) if tool else name, tool.get("description", "")))
    head, _, rest = text.partition("\n\n")
    tail = rest.partition("\n\n")[2]
    screen = tables.console()
    screen.print(tables.prose(f"{head}\n", screen.width), soft_wrap=True)
    tables.print_names(screen, ("tool", "what it does"), [("", entries)])
    if tail:
        screen.print(tables.prose(f"\n{tail}", screen.width), soft_wrap=True)


# ---- `greenroom outputs` ---------------------------------------------------------------------------------------------
#
# The files of long output. It asks no gateway: all gateways of a user share the directory.


@click.command("outputs")
@click.option("--clear", is_flag=True, help="Remove all of them.")
@json_option
def outputs_command(clear: bool, as_json: bool) -> None:
    """List the files that keep what did not fit an answer: long text, binary content, structured content.

    They are removed by age and by size (`outputGuard.keepHours`, `outputGuard.keepBytes`).
    """
    from ..gateway.exposures.output_files import Spill

    spill = Spill()
    if clear:
        try:
            count = spill.clear()
        except OSError as error:
            raise UsageError(f"{spill.directory} cannot be cleared: {error.strerror or error}") from None
        what = "1 file was" if count == 1 else f"{count} files were"
        cleared = ClearedJson(removed=count)
        show(f"{what} removed.", cleared, as_json)
        return
    files, now = spill.kept(), time.time()
    rows: list[OutputJson] = [
        OutputJson(id=file.id, path=str(file.path), bytes=file.size, age_seconds=max(0.0, now - file.stamp))
        for file in files
    ]
    total = sum(file.size for file in files)
    details = OutputsJson(directory=str(spill.directory), outputs=rows, bytes=total)
    if not rows and not as_json:
        say(f"no long output is kept in {spill.directory}.")
        return
    lines = [f"{row.bytes:>12,} bytes  {_age(row.age_seconds):>6}  {one_line(row.path)}" for row in rows]
    show("\n".join([*lines, "", f"{len(rows)} in all, {total:,} bytes"]), details, as_json)


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# ---- `greenroom config` ----------------------------------------------------------------------------------------------
#
# The effective configuration, the source of each part, and the schema of a file.


@click.command("config")
@click.argument("server", required=False, shell_complete=complete_servers)
@click.option("--changed", is_flag=True, help="Only settings that a file changes, and no defaults.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the configuration instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (always the case here).")
@config_option
def config_command(
    server: str | None, changed: bool, schema: bool, as_json: bool, config_path: Path | None
) -> None:
    """Show the effective configuration with its sources, or that of SERVER alone. Secrets are hidden."""
    from ..config.masking import redacted
    from ..config.schema import config_schema

    del as_json  # a configuration is JSON; the flag is there because every command has it
    if schema:
        show_json(config_schema())
        return
    config = read_config(config_path, always=True, most=None, about=server)
    said = redacted(config, changed=changed or server is not None)
    if server is not None:
        if server not in (*config.servers, *config.broken):
            raise no_such_server(config, server)
        said["settings"] = said["sources"]["settings"] = {}
        for part in (said, said["sources"]):
            part["mcpServers"] = {name: each for name, each in part["mcpServers"].items() if name == server}
        said["broken"] = {name: why for name, why in said["broken"].items() if name == server}
        said["problems"] = [str(problem) for problem in config.problems if is_about(problem, server)]
    show_json(said, ConfigurationJson)
