"""The commands that do something: `call` and `reconnect`.

`call` goes through the running gateway, which has the servers up; without one it opens a room of its own for that one
call. Arguments are the server's to validate. `k=v` is read as JSON where it is JSON (`n=5`, `deep=true`) and as text
where it is not, except that a parameter declared a string stays the text that was typed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import click

from ...protocol.errors import UsageError
from .._marks import details_of
from ._common import common_options, read_config, run_to_end, running_gateway, say, show, show_result

if TYPE_CHECKING:
    from ...protocol.config import Config


@click.command("call")
@click.argument("tool")
@click.argument("pairs", nargs=-1, metavar="[K=V]...")
@click.option("--args", "args_json", metavar="JSON", help="All arguments as one JSON object.")
@click.option("--server", help="The server it is of, when several have one of that name.")
@common_options
def call_command(
    tool: str,
    pairs: tuple[str, ...],
    args_json: str | None,
    server: str | None,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Call TOOL with arguments K=V, or with --args JSON."""
    asked = Asked(tool, server, split_pairs(pairs), given_args(args_json))
    config = read_config(config_path)
    gateway = running_gateway(config, pid)
    if gateway is None:
        origin: Mapping[str, Any] = {"source": "room"}
        result = _call_in_own_room(config, asked)
    else:
        origin = {"source": "gateway", "pid": gateway.pid}
        schema = schema_of(gateway.ask("mcp", arguments=asked.describe())) if pairs else None
        result = gateway.ask("mcp", arguments=asked.request(schema))
    return 0 if show_result(result, origin, as_json) else 1


@click.command("reconnect")
@click.argument("server", required=False)
@common_options
def reconnect_command(server: str | None, config_path: Path | None, pid: int | None, as_json: bool) -> int:
    """Connect SERVER again, or every server that is up, in the running gateway."""
    config = read_config(config_path)
    gateway = running_gateway(config, pid)
    if gateway is None:
        say(
            "no gateway runs for this configuration, so there is nothing to reconnect: start greenroom serve."
        )
        return 1
    servers: list[Mapping[str, Any]] = gateway.ask("reconnect", server=server)["servers"]
    lines = [_reconnected(one) for one in servers] or ["No server was connected; nothing to do."]
    show("\n".join(lines), {"servers": servers, "source": "gateway", "pid": gateway.pid}, as_json)
    return int(any(one["error"] for one in servers))


@attrs.frozen
class Asked:
    """What is to be called, as it was typed."""

    tool: str
    server: str | None
    pairs: Mapping[str, str]
    args: Mapping[str, Any]

    def request(self, schema: Mapping[str, Any] | None) -> dict[str, Any]:
        """The request to the `mcp` tool, once the tool's schema is known (or is not to be had)."""
        args = {**self.args, **{key: typed(value, key, schema) for key, value in self.pairs.items()}}
        return {"tool": self.tool, "args": args} | self._where()

    def describe(self) -> dict[str, Any]:
        return {"describe": self.tool} | self._where()

    def _where(self) -> dict[str, Any]:
        return {} if self.server is None else {"server": self.server}


def split_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """`k=v` words as a mapping. Raises `UsageError` for a word that is none."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f'"{pair}" is not K=V. Write for example: greenroom call TOOL path=/tmp')
        found[key] = value
    return found


def given_args(text: str | None) -> Mapping[str, Any]:
    """`--args`. Raises `UsageError` unless it is a JSON object."""
    from .._mcp_tool import parse_args

    return parse_args(text) or {}


def typed(value: str, key: str, schema: Mapping[str, Any] | None) -> Any:
    """What `key=value` means to a tool of that schema."""
    properties = schema.get("properties") if schema is not None else None
    declared: Any = (
        cast("Mapping[str, Any]", properties).get(key) if isinstance(properties, Mapping) else None
    )
    if isinstance(declared, Mapping) and cast("Mapping[str, Any]", declared).get("type") == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def schema_of(described: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The input schema in the result of a describe request; None when the tool is not known yet."""
    tool = details_of(described).get("tool")
    return tool.get("inputSchema") if isinstance(tool, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _call_in_own_room(config: Config, asked: Asked) -> Mapping[str, Any]:
    return run_to_end(partial(_call_once, config, asked))


async def _call_once(config: Config, asked: Asked) -> Mapping[str, Any]:
    from ... import Greenroom
    from .._mcp_tool import FOR_PEOPLE, McpTool, ask

    async with Greenroom.open(config, bootstrap=False) as room:
        tool = McpTool(room, hints=FOR_PEOPLE)
        schema = schema_of(await ask(tool, asked.describe())) if asked.pairs else None
        return await ask(tool, asked.request(schema))


def _reconnected(one: Mapping[str, Any]) -> str:
    return f"✗ {one['name']}: {one['error']}" if one["error"] else f"✓ {one['name']}"
