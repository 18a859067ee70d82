"""The tools of `meta` as a client sees them, and how a request to them is read.

Like the one of `mcp`, the definitions are constants: they name no servers, so they cost the same context for one
server or for a thousand. Their names and parameters are MetaMCP's. Three things are added: an answer of `mcp_discover`
has pages, the parameters of each tool that it finds, and the rest of long outputs (`output`).

Each request is one to the `mcp` tool in other words, and has its answers, bounds and errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import attrs

from ...protocol.bounds import EXECUTE_CODE_BYTES
from ...protocol.errors import UsageError
from .._mcp_tool import Request, kind_of, parse_request, refuse_unknown

EXECUTE: Final = "mcp_execute"
DISCOVER: Final = "mcp_discover"
PROVISION: Final = "mcp_provision"
CALL: Final = "mcp_call"

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}


def _text(meaning: str) -> Mapping[str, str]:
    return {**_TEXT, "description": meaning}


def _tool(name: str, description: str, required: list[str], **properties: Any) -> Mapping[str, Any]:
    for parameter in properties.keys() - set(required):
        properties[parameter] = {**properties[parameter], "nullable": True}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {"name": name, "description": description, "inputSchema": schema}


_SHOWN: Final = (
    _tool(
        DISCOVER,
        "Find MCP tools, with their parameters. Nothing given: the servers.",
        [],
        query=_text("words, OR'd"),
        server=_text("to list or look in"),
        instructions=_text("of a server"),
        output=_text("id of a long output"),
        limit={**_NUMBER, "description": "page size"},
        offset={**_NUMBER, "description": "skip"},
    ),
    _tool(
        PROVISION,
        "Find the configured server for a task, and start it if autoProvision is true.",
        ["intent"],
        intent=_text("what is to be done, or a server's name"),
        context=_text("more words"),
        autoProvision={"type": "boolean"},
    ),
    _tool(
        CALL,
        'Call a tool. E.g. mcp_call({server:"calc",tool:"add",args:{a:1}}).',
        ["tool"],
        server=_text("needed if the name alone is not unique"),
        tool=_text("tool to call"),
        args={"type": "object", "description": "or JSON text"},
    ),
)


_RUNNING: Final = _tool(
    EXECUTE,
    "Run Python that calls tools: r = await call(server, tool, args) is the MCP result, asyncio.gather makes several "
    "calls at once. You see what it prints and its last value. A sandbox: no files, no network, few modules.",
    ["code"],
    code=_text("at most 50 KiB"),
)


_PARAMETERS: Final = {
    tool["name"]: frozenset(tool["inputSchema"]["properties"]) for tool in (*_SHOWN, _RUNNING)
}


@cache
def can_execute() -> bool:
    """Whether the sandbox is installed."""
    return find_spec("pydantic_monty") is not None


def definitions() -> tuple[Mapping[str, Any], ...]:
    """What `tools/list` shows. A tool that could only refuse is left out."""
    return (*_SHOWN, _RUNNING) if can_execute() else _SHOWN


@attrs.frozen
class Provision:
    """A request to find the server for a task. `starts`: and to start it."""

    intent: str
    context: str = ""
    starts: bool = False

    @property
    def words(self) -> str:
        return f"{self.intent} {self.context}".strip()


@attrs.frozen
class Execute:
    """A request to run some code."""

    code: str


def parse_meta(name: str, arguments: Mapping[str, Any]) -> Request | Provision | Execute | None:
    """Read the arguments of a call to one of these tools. None: there is no such tool.

    Raises `UsageError` (code `invalid_args`), which names the wrong parameter and what was expected.
    """
    if name in _PARAMETERS:
        refuse_unknown(arguments, _PARAMETERS[name])
    if name == CALL:
        _require(arguments, "tool")
        return parse_request(_those(arguments, "server", "tool", "args"))
    if name == DISCOVER:
        _check_text(arguments, "query")
        asked = _those(arguments, "server", "instructions", "output", "limit", "offset")
        return parse_request({**asked, "search": arguments.get("query") or None})
    if name == PROVISION:
        _require(arguments, "intent")
        _check_text(arguments, "context")
        starts = arguments.get("autoProvision")
        if not isinstance(starts, bool | None):
            raise _invalid(f"Invalid autoProvision: expected true or false, got {kind_of(starts)}.")
        return Provision(arguments["intent"], arguments.get("context") or "", starts is True)
    if name == EXECUTE:
        _require(arguments, "code")
        code: str = arguments["code"]
        size = len(code.encode(errors="replace"))
        if size > EXECUTE_CODE_BYTES:
            raise _invalid(f"Invalid code: it has {size:,} bytes, at most {EXECUTE_CODE_BYTES:,} are run.")
        if not can_execute():
            text = 'mcp_execute needs a sandbox that is not installed. Its owner runs: pip install "greenroom[execute]"'
            raise UsageError(text, code="execute_unavailable")
        return Execute(code)
    return None


def _those(arguments: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: arguments[name] for name in names if name in arguments}


def _require(arguments: Mapping[str, Any], name: str) -> None:
    _check_text(arguments, name)
    if not arguments.get(name):
        raise _invalid(f"Missing required parameter: {name}")


def _check_text(arguments: Mapping[str, Any], name: str) -> None:
    value = arguments.get(name)
    if not isinstance(value, str | None):
        raise _invalid(f"Invalid {name}: expected a string, got {kind_of(value)}.")


def _invalid(message: str) -> UsageError:
    return UsageError(message, code="invalid_args")
