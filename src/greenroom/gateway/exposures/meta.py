"""The tools of `meta` as a client sees them, and how a request to them is read.

Like the definition of the `mcp` tool, these definitions are constants. They name no servers, so they cost the same
context for one server or for a thousand. Their names and parameters are those of MetaMCP. Three things are added to
`mcp_discover`: its answers have pages, they show the parameters of each tool, and `output` reads the rest of a long
output.

Each request is translated into a request to the `mcp` tool, and has the same answers, bounds and errors.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import anyio
import attrs
import msgspec

from ...actors.router import make_searchable
from ...actors.workers import apart
from ...catalogue.search import asked_words, search
from ...protocol.bounds import EXECUTE_CODE_BYTES, REGISTRY_BYTES
from ...protocol.errors import UsageError
from ...protocol.json_values import is_array, is_object
from ...protocol.safe_text import one_line
from ..jobs import Job
from ..next_steps import PLAIN, Commands
from .proxy import ChosenTools, Proxy
from .tool_definition import FOR_META, McpToolRequest, Mode, kind_of, parse_request, refuse_unknown

if TYPE_CHECKING:
    from ...supervisor.port import RoomPort
    from .code_execution import Runs


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
        args={"type": "object", "description": "or JSON text", "additionalProperties": True},
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
    """The tools that `tools/list` shows. `mcp_execute` is missing where it would always be refused."""
    return (*_SHOWN, _RUNNING) if can_execute() else _SHOWN


@attrs.frozen
class ProvisionRequest:
    """A request to find the server for a task. `starts`: start that server too."""

    intent: str
    context: str = ""
    starts: bool = False

    @property
    def words(self) -> str:
        return f"{self.intent} {self.context}".strip()


@attrs.frozen
class ExecuteRequest:
    """A request to run some code."""

    code: str


def parse_meta(
    name: str, arguments: Mapping[str, Any]
) -> McpToolRequest | ProvisionRequest | ExecuteRequest | None:
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
        return ProvisionRequest(arguments["intent"], arguments.get("context") or "", starts is True)
    if name == EXECUTE:
        _require(arguments, "code")
        code: str = arguments["code"]
        size = len(code.encode(errors="replace"))
        if size > EXECUTE_CODE_BYTES:
            raise _invalid(f"Invalid code: it has {size:,} bytes, at most {EXECUTE_CODE_BYTES:,} are run.")
        if not can_execute():
            text = 'mcp_execute needs a sandbox that is not installed. Its owner runs: pip install "greenroom[execute]"'
            raise UsageError(text, code="execute_unavailable")
        return ExecuteRequest(code)
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


# ---- The exposure `meta`: four tools, whatever is configured behind them --------------------------------------------
#
# A request to one of them becomes a request to the `mcp` tool, which knows how to search and how to call. So its
# answers keep to the same bounds, are refused for the same reasons, and say what went wrong in the same words; only the
# next step is worded for these tools. No tools stand beside them: whoever wants that uses `proxy`.
#
# `mcp_provision` looks among the configured servers, and in a registry of others only if one is configured
# (`look_up`).


class Meta(Proxy):
    """Every server behind four tools, for one client. `room` is open. `runs`: the runs of code of all clients of the
    room."""

    _plain_name = None
    _names = _PARAMETERS

    def __init__(self, room: RoomPort, runs: Runs, commands: Commands = PLAIN) -> None:
        super().__init__(room, ChosenTools(room.catalogue, commands), hints=FOR_META)
        self._sandbox_room = room
        self._runs = runs

    def capabilities(self) -> Mapping[str, Any]:
        return {"tools": {}, "logging": {}}

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return {"tools": list(definitions())} if method == "tools/list" else None

    @property
    def settling_time(self) -> float:
        return 0.0  # its tools are always the same

    def _call(self, name: str, arguments: Mapping[str, Any] | msgspec.Raw | None, job: Job) -> None:
        if isinstance(arguments, msgspec.Raw):  # a large call of a tool that is not ours
            self._tool.refuse(name, job, arguments)
            return
        arguments = arguments or {}
        try:
            request = parse_meta(name, arguments)
        except UsageError as error:
            self._tool.misread(error, arguments, job)
            return
        if request is None:
            self._tool.refuse(name, job, arguments)
        elif self._continues(job):
            pass
        elif isinstance(request, ExecuteRequest):
            from .code_execution import Execution

            Execution(self._sandbox_room, self._tool, self._runs, request.code).begin(
                self._client_host.suspended, job
            )
        elif isinstance(request, ProvisionRequest):
            job.run(partial(self._provision, request, job))
        else:
            self._tool.carry_out(request, job)

    async def _provision(self, provision: ProvisionRequest, job: Job) -> None:
        """Answer with the tools that fit the request, or with the tools of the best server once it has started. If none
        is started, the offers of the registry follow."""
        server = await self._best_server(provision) if provision.starts else None
        registry = self._room.catalogue.config.settings.registry
        if server is not None:
            self._tool.carry_out(McpToolRequest(Mode.CONNECT, server), job)
        else:
            offers = "" if registry is None else await look_up(registry, provision.words)
            self._tool.look(McpToolRequest(Mode.SEARCH, provision.words, include_schemas=True), job, offers)

    async def _best_server(self, provision: ProvisionRequest) -> str | None:
        if provision.intent in self._room.catalogue.config.servers:
            return provision.intent
        index = self._room.catalogue.index
        await make_searchable(index)
        near = (
            await self._room.catalogue.near(provision.words) if self._room.catalogue.finds_by_meaning else ()
        )
        found = search(index, provision.words, limit=1, near=near).matches
        return found[0].target.server if found else None


# ---- A registry of servers, in which `mcp_provision` looks too, if one is configured --------------------------------
#
# It has the interface of the official registry (`GET /v0.1/servers`), which finds servers by a part of their name. So
# the longest words of a request are looked for one by one, and what comes is ranked here, by MetaMCP's points: for each
# word, 10 for a name that is this word, else 5 for a name with it, and 2 for a description with it. These words are all
# that is sent. Nothing is installed and nothing is started: a person has to add a server to the configuration.
#
# What a registry says is written by strangers. It is bounded, it is shown without hidden characters and on one line
# each, and a package or an address only if it looks like one. A registry that does not answer costs no more than its
# part of the answer, which says so.

_ASKED: Final = 3  # words, each with a request
_PAGE: Final = 30  # servers that come for each
_SHOWN_OF_REGISTRY: Final = 5
_NAME: Final = 100  # characters
_DESCRIPTION: Final = 200
_PACKAGE: Final = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9._/-]{0,200}")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,60}")
_ADDRESS: Final = re.compile(r"https://[A-Za-z0-9.-]{1,200}(?::\d{1,5})?(?:/[A-Za-z0-9._~/-]{0,200})?")
_COMMANDS: Final = {
    "npm": "npx -y {package}@{version}",
    "pypi": "uvx {package}=={version}",
}


@attrs.frozen
class Offer:
    """A server of the registry. `start`: the command that starts it, or its address; empty if it has neither that we
    know."""

    name: str
    description: str
    start: str

    def points(self, words: Iterable[str]) -> int:
        name, described = self.name.rpartition("/")[2].lower(), self.description.lower()
        found = 0
        for word in words:
            found += 10 if name == word else 5 if word in name else 0
            found += 2 if word in described else 0
        return found


async def look_up(registry: str, words: str) -> str:
    """A text for a model with the servers that the registry has for these words."""
    asked = sorted(asked_words(words), key=len, reverse=True)
    if not asked:
        return ""
    offers: dict[str, Offer] = {}
    faults: list[str] = []
    async with anyio.create_task_group() as tasks:
        for word in asked[:_ASKED]:
            tasks.start_soon(partial(_ask, registry, word, offers, faults))
    ranked = sorted(offers.values(), key=lambda offer: (-offer.points(asked), offer.name))
    return _in_words(registry, ranked[:_SHOWN_OF_REGISTRY], faults)


def _http() -> tuple[Callable[[str, int], Awaitable[bytes]], type[Exception]]:
    """The function that fetches an answer, and the exception that it raises. Importing them takes long: call this in a
    thread."""
    from ...actors.transports.http_client import fetched
    from ...actors.transports.http_faults import ExchangeFault

    return fetched, ExchangeFault


async def _ask(registry: str, word: str, offers: dict[str, Offer], faults: list[str]) -> None:
    fetched, fault_of_it = await apart(_http)
    query = urlencode({"search": word, "version": "latest", "limit": _PAGE})
    try:
        answer = await fetched(f"{registry.rstrip('/')}/v0.1/servers?{query}", REGISTRY_BYTES)
        said = msgspec.json.decode(answer)
    except fault_of_it as fault:
        faults.append(str(fault))
    except (ValueError, RecursionError):  # msgspec's errors and ours are of the first kind
        faults.append("what came is not JSON")
    else:
        for offer in offers_in(said):
            offers.setdefault(offer.name, offer)


def offers_in(said: Any) -> list[Offer]:
    """The servers in an answer of the registry. Entries of another shape are left out."""
    found: list[Offer] = []
    for entry in [entry for answer in _objects([said]) for entry in _objects(answer.get("servers"))]:
        server = next(iter(_objects([entry.get("server")])), entry)
        name = _line(server.get("name"), _NAME)
        if name:
            found.append(Offer(name, _line(server.get("description"), _DESCRIPTION), _start_of(server)))
    return found


def _start_of(server: Mapping[str, Any]) -> str:
    for package in _objects(server.get("packages")):
        command = _COMMANDS.get(str(package.get("registryType")))
        name, version = package.get("identifier"), package.get("version")
        if command and _fits(_PACKAGE, name) and _fits(_VERSION, version):
            return command.format(package=name, version=version)
    for remote in _objects(server.get("remotes")):
        if _fits(_ADDRESS, remote.get("url")):
            return str(remote["url"])
    return ""


def _objects(given: Any) -> list[Mapping[str, Any]]:
    return [item for item in given[:_PAGE] if is_object(item)] if is_array(given) else []


def _fits(form: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and form.fullmatch(text) is not None


def _line(text: object, most: int) -> str:
    """A text of a registry on one line."""
    return one_line(text, most) if isinstance(text, str) else ""


def _in_words(registry: str, offers: Sequence[Offer], faults: Sequence[str]) -> str:
    if not offers:
        why = f"it could not be asked: {faults[0]}" if faults else "it has none whose name fits"
        return f"Not configured, in the registry {registry}: {why}."
    lines = [f"Not configured, in the registry {registry} (its words; nothing was installed or started):"]
    for offer in offers:
        lines.append(f"- {offer.name}{': ' if offer.description else ''}{offer.description}")
        if offer.start:
            lines.append(f"  {offer.start}")
    lines.append("To use one, its owner adds it to the configuration. Ask them first.")
    return "\n".join(lines)
