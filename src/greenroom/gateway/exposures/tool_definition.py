"""The `mcp` tool as a client sees it: its definition, and how a request to it is read.

The definition is a constant. It names no servers and carries no counts. So it costs the same context (under
290 tokens, counted as four characters each) for one server or for a thousand, never changes while a client
holds it, and needs no `list_changed`.

Each parameter has a description, mostly of one word, since there is room for no more. Search says in its own that
words are OR'd. Defaults are not declared: the answers say how to get the next page.

Each parameter is also declared `nullable`, which is OpenAPI's word and means nothing in JSON Schema. Some agents
require every parameter that is not declared so, and could not call the tool at all. Null counts as absent.

The parameters of a request decide its mode, in this order: tool, connect, describe, promote, instructions,
skill, search, output, task, server. A request with none of them asks for the status. Models like to fill in every
parameter they are offered, so an empty string counts as absent. Only `search` may be empty; it then means "everything
of this server". Lists come in pages, however many entries are requested.

`args` is declared an object, because several clients refuse a tool whose schema has a list of types, and
every other tool along with it. A JSON string is accepted too. It also says that it takes any member: some frameworks
make a model of each schema that refuses what is not listed.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, TypeVar, cast

import msgspec

from ...catalogue.hidden_characters import unhidden_value
from ...config.value_kinds import did_you_mean
from ...protocol.errors import FailureKind, UsageError
from ...protocol.jsonrpc.incoming import ABSENT, NO_MESSAGE
from ...protocol.safe_text import typed, unhidden
from ...protocol.typed_arguments import decode_json
from ..next_steps import Commands
from ..result_meta import DETAILS

# ---- The answer of the `mcp` tool: content blocks for the model, and `details` for a program ------------------------
#
# An answer is always a result, never a JSON-RPC error: a model can read a result and go on. It has no
# `structuredContent`, because clients would show that in place of the content; the details are in `_meta`. If
# the request was not carried out, `details.error` is set, and `isError` with it.

DETAILS_LIMIT: Final = 51_200  # bytes
_THEIR_ERRORS: Final = frozenset({"call_failed", "tool_error"})
# Modes whose answers are in the words of a server.
_THEIRS: Final = frozenset({"call", "instructions", "skill"})


def size_of(value: Any) -> int:
    """The size of `value` as JSON, in bytes. A value that cannot be encoded counts as too large for any
    bound."""
    try:
        return len(msgspec.json.encode(value))
    except (OverflowError, RecursionError, TypeError, UnicodeError):
        return sys.maxsize


def _no_details() -> Mapping[str, Any]:
    return {}


class McpToolAnswer(msgspec.Struct, frozen=True, eq=False):
    """The answer of the `mcp` tool. `content` is MCP content blocks for a model; `details` says the same for
    programs."""

    content: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any] = msgspec.field(default_factory=_no_details)

    @classmethod
    def of(cls, text: str, **details: Any) -> McpToolAnswer:
        """An answer of one text block, in our own words and words of definitions. Hidden characters are taken out of
        the text and of the details."""
        return cls(({"type": "text", "text": unhidden(text)},), unhidden_value(details))

    @property
    def is_error(self) -> bool:
        return "error" in self.details

    def filled(self, commands: Commands) -> McpToolAnswer:
        """The same answer with the options of `commands` in its next steps. Texts of servers stay as they are."""
        error = self.details.get("error")
        if (
            commands == Commands()
            or error in _THEIR_ERRORS
            or (not error and self.details.get("mode") in _THEIRS)
        ):
            return self
        content = [
            {**block, "text": commands.filled(block["text"])} if block.get("type") == "text" else block
            for block in self.content
        ]
        return McpToolAnswer(content, commands.filled_in(self.details))

    def slim(self) -> McpToolAnswer:
        """The same answer with its details within their bound: the largest details are left out, and only their names
        are kept."""
        sizes = {key: size_of(value) for key, value in self.details.items()}
        omitted: dict[str, int] = {}
        for key in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if sum(sizes.values()) <= DETAILS_LIMIT:
                break
            omitted[key] = sizes.pop(key)
        if not omitted:
            return self
        return McpToolAnswer(
            self.content, {**{key: self.details[key] for key in sizes}, "omittedBytes": omitted}
        )

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")

    def as_result(self) -> dict[str, Any]:
        """The answer as the result of a tools/call."""
        result: dict[str, Any] = {"content": list(self.content), "_meta": {DETAILS: dict(self.details)}}
        if self.is_error:
            result["isError"] = True
        return result


T = TypeVar("T")
NAME: Final = "mcp"
PAGE: Final = 12
MOST_MATCHES: Final = 100  # on a page
MOST_LINES: Final = 500  # on a page of a list or of the status
MAX_REGEX: Final = 256
_SHOWN_KEY: Final = 64  # characters of the name of a parameter that we do not have
_MOST_UNKNOWN: Final = 5  # such parameters in one sentence


def _parameter(meaning: str, kind: str = "string") -> Mapping[str, Any]:
    return {"type": kind, "description": meaning, "nullable": True}


DEFINITION: Final[Mapping[str, Any]] = {
    "name": NAME,
    "description": "Search MCP tools, skills; call by tool+args; {}: status",
    "inputSchema": {
        "type": "object",
        "properties": {
            "tool": _parameter("call"),
            "args": {**_parameter("its", "object"), "additionalProperties": True},
            "connect": _parameter("server"),
            "describe": _parameter("tool"),
            "promote": _parameter("tool"),
            "instructions": _parameter("server"),
            "skill": _parameter("read"),
            "search": _parameter("OR'd words"),
            "regex": _parameter("search", "boolean"),
            "includeSchemas": _parameter("search", "boolean"),
            "limit": _parameter("page", "integer"),
            "offset": _parameter("skip", "integer"),
            "output": _parameter("id"),
            "background": _parameter("no wait", "boolean"),
            "server": _parameter("name"),
        },
    },
}
# There is no room to declare `task`: with it, and each description cut to one short word (`search` to "OR'd",
# `background` to "task"), the definition still has 294 tokens. Nothing is missing without it, because `output`, which
# is declared, takes the id of a task too.
_PARAMETERS: Final = frozenset(DEFINITION["inputSchema"]["properties"]) | {"task"}


class Mode(enum.Enum):
    """What a request asks for. The order is the priority."""

    CALL = "call"
    CONNECT = "connect"
    DESCRIBE = "describe"
    PROMOTE = "promote"
    INSTRUCTIONS = "instructions"
    SKILL = "skill"
    SEARCH = "search"
    OUTPUT = "output"
    TASK = "task"
    LIST = "list"
    STATUS = "status"


_CALL: Final = Mode.CALL  # naming an enum member costs ten times as much as a constant on 3.11
_DECIDES: Final[tuple[tuple[str, Mode], ...]] = (
    ("tool", Mode.CALL),
    ("connect", Mode.CONNECT),
    ("describe", Mode.DESCRIBE),
    ("promote", Mode.PROMOTE),
    ("instructions", Mode.INSTRUCTIONS),
    ("skill", Mode.SKILL),
    ("search", Mode.SEARCH),
    ("output", Mode.OUTPUT),
    ("task", Mode.TASK),
    ("server", Mode.LIST),
)


class McpToolRequest(msgspec.Struct, frozen=True):
    """A request to the `mcp` tool, read. `subject` is the value of the parameter that decides the mode: a tool, a
    server or a query."""

    mode: Mode
    subject: str = ""
    server: str | None = None
    args: Mapping[str, Any] | msgspec.Raw | None = None  # `Raw`: the JSON of an object
    regex: bool = False
    include_schemas: bool | None = None  # of a search: None: of the first matches
    limit: int = MOST_LINES
    offset: int = 0
    near: tuple[bytes, ...] = ()  # of a search: the keys of what is near to it in meaning, once that is known
    background: bool = False


class _PlainMcpToolCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    tool: str
    args: msgspec.Raw = ABSENT
    server: str | None = None


_plain_call = msgspec.json.Decoder(_PlainMcpToolCall)


def read_plain_request(arguments: msgspec.Raw) -> McpToolRequest | None:
    """The request to call a tool with an object of arguments, which stays the JSON that came. None for any other: then
    use `parse_request`."""
    try:
        said = _plain_call.decode(arguments)
    except NO_MESSAGE:
        return None
    args = None if said.args is ABSENT else said.args
    if not said.tool or (args is not None and bytes(args)[:1] != b"{"):
        return None
    return McpToolRequest(_CALL, said.tool, said.server or None, args)


def parse_request(arguments: Mapping[str, Any]) -> McpToolRequest:
    """Read the arguments of a call to `mcp`.

    Raises `UsageError` (code `invalid_args`), which names the wrong parameter and what was expected.
    """
    refuse_unknown(arguments, _PARAMETERS)
    mode, subject = _mode_of(arguments)
    if mode is Mode.CALL:  # the hot path: no other parameter matters to a call
        args = arguments.get("args")
        stays = isinstance(args, msgspec.Raw) and kind_of(args) == "object"  # in a large call
        background = _flag(arguments, "background", False)
        server = _text(arguments, "server")
        return McpToolRequest(
            mode, subject, server, args if stays else parse_args(args), background=background
        )
    if mode is Mode.STATUS and arguments.get("args"):
        raise _invalid(_without_tool(arguments["args"]))
    usual, most = (PAGE, MOST_MATCHES) if mode is Mode.SEARCH else (MOST_LINES, MOST_LINES)
    return McpToolRequest(
        mode,
        subject,
        _text(arguments, "server"),
        regex=_flag(arguments, "regex", False),
        include_schemas=_flag(arguments, "includeSchemas", None),
        limit=min(most, max(1, _number(arguments, "limit", usual))),
        offset=max(0, _number(arguments, "offset", 0)),
    )


def _without_tool(args: object) -> str:
    """What is wrong with `args` of a request that names no tool."""
    said = parse_args(args) or {}
    if not said.keys() & {key for key, _ in _DECIDES}:
        return (
            '`args` are the arguments of a tool, and `tool` is missing: mcp({ tool: "name", args: {...} }).'
        )
    return (
        "Gateway params were nested inside `args`; pass them top-level, "
        'for example mcp({ tool: "name", args: {...} }).'
    )


def refuse_unknown(arguments: Mapping[str, Any], known: Set[str]) -> None:
    """Raise `UsageError` (code `invalid_args`) for a parameter that our tool does not have, because its value would be
    ignored. A null or empty value does no harm."""
    if arguments.keys() <= known:
        return
    unknown = [key[:_SHOWN_KEY] for key in arguments if key not in known and arguments[key] not in (None, "")]
    if not unknown:
        return
    named = ", ".join(f'"{key}"{did_you_mean(key, known)}' for key in unknown[:_MOST_UNKNOWN])
    more = f" and {len(unknown) - _MOST_UNKNOWN} more" if len(unknown) > _MOST_UNKNOWN else ""
    head = f"Unknown {'parameter' if len(unknown) == 1 else 'parameters'} {named}{more}"
    step = (
        " What a tool is called with goes into `args`." if "args" in known and arguments.get("tool") else ""
    )
    raise _invalid(f"{head}{'' if head.endswith('?') else '.'} Known: {', '.join(sorted(known))}.{step}")


def parse_args(args: Any) -> Mapping[str, Any] | None:
    """`args` as an object. It may be given as an object or as JSON text. Empty text and null mean no
    arguments.

    Raises `UsageError`: `Invalid args JSON: …` or `Invalid args: expected a JSON object, got …`.
    """
    if args is None or args == "":
        return None
    if isinstance(args, str):
        args = _decoded(args)
    if isinstance(args, Mapping):
        return cast("Mapping[str, Any]", args)
    raise _invalid(f"Invalid args: expected a JSON object, got {kind_of(args)}.")


_KINDS: Final = {
    b"{": "object",
    b"[": "array",
    b'"': "string",
    b"n": "null",
    b"t": "boolean",
    b"f": "boolean",
}  # by the first character of JSON


def kind_of(value: Any) -> str:
    """The JSON word for a value's type."""
    if isinstance(value, msgspec.Raw):
        return _KINDS.get(bytes(memoryview(value)[:1]), "number")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "object" if isinstance(value, Mapping) else "array"


def _mode_of(arguments: Mapping[str, Any]) -> tuple[Mode, str]:
    for key, mode in _DECIDES:
        subject = _text(arguments, key)
        if subject is not None:
            return mode, subject
    return Mode.STATUS, ""


def _text(arguments: Mapping[str, Any], key: str) -> str | None:
    value = arguments.get(key)
    if value is None or (value == "" and key != "search"):
        return None
    if isinstance(value, str):
        return value
    raise _invalid(f"Invalid {key}: expected a string, got {kind_of(value)}.")


def _flag(arguments: Mapping[str, Any], key: str, default: T) -> bool | T:
    value = arguments.get(key)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise _invalid(f"Invalid {key}: expected true or false, got {kind_of(value)}.")


def _number(arguments: Mapping[str, Any], key: str, default: int) -> int:
    value = arguments.get(key)
    if value is None:
        return default
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return int(value)
    raise _invalid(f"Invalid {key}: expected a whole number, got {kind_of(value)}.")


def _decoded(text: str) -> Any:
    try:
        return decode_json(text)
    except ValueError as error:
        raise _invalid(f"Invalid args JSON: {error}") from None


def _invalid(message: str) -> UsageError:
    return UsageError(message, code="invalid_args")


# ---- The next step, in words for the reader of an answer ------------------------------------------------------------
#
# Three kinds of readers get the same answers: a model that can call `mcp(...)`, a model that can call the tools of the
# exposure `meta`, and a person at a shell, who can type `greenroom …`. The facts are the same; only these sentences
# differ.


class Hints(msgspec.Struct, frozen=True):
    """Texts that complete a message with a next step. `{server}`, `{typed}` (the server, for a shell), `{tool}`,
    `{output}` and `{offset}` are filled in."""

    overview: str
    see_servers: str
    search: str
    connect: str
    instructions: str
    learn: str  # what to do about servers of which nothing is known
    mend: str  # and about one that failed
    try_now: str  # and about one whose circuit breaker refuses calls: the same start would fail once more
    # About one whose program cannot be run.
    mend_program: str = "`greenroom explain {typed}` says what to do."
    log_in: str = "To log in: greenroom auth {typed}"
    call: str = 'mcp({{ tool: "{tool}" }})'
    describe: str = 'mcp({{ describe: "{tool}" }})'
    more: str = "offset: {offset} for more"  # below a list
    page: str = 'mcp({{ output: "{output}", offset: {offset} }})'  # the next part of a long text
    skill: str = 'mcp({{ skill: "{skill}" }})'  # to read one; empty: whoever reads this cannot
    nothing_found: str = ""  # what to do then, if it is not `see_servers`
    for_people: bool = False  # each step is a line of its own, behind all facts, so that it can be copied

    @property
    def between(self) -> str:
        """The words before a step."""
        return "\n" if self.for_people else " "

    def without_servers(self) -> Hints:
        """The same where no servers are configured: nothing can be found. (A command says itself how to add one.)"""
        return msgspec.structs.replace(self, search="", nothing_found="", see_servers="")

    def with_step(self, text: str, step: str, more: str = "") -> str:
        """A message, followed by a step, if there is one, and by `more`."""
        if not step:
            return f"{text}{more}"
        return f"{text}{more}\n{step}" if self.for_people else f"{text} {step}{more}"

    def to_connect(self, server: str) -> str:
        return self.connect.format(server=server, typed=typed(server))

    def to_mend(self, server: str, kind: str | None) -> str:
        """`kind`: of its failure. A program that cannot be run is not tried again before that is mended."""
        step = self.mend_program if kind == FailureKind.PROGRAM else self.mend
        return step.format(server=server, typed=typed(server))

    def to_try_now(self, server: str) -> str:
        return self.try_now.format(server=server, typed=typed(server))

    def to_log_in(self, server: str) -> str:
        return self.log_in.format(server=server, typed=typed(server))

    def to_read(self, skill: str) -> str:
        return self.skill.format(skill=skill)

    def to_describe(self, tool: str) -> str:
        return self.describe.format(tool=tool)

    def to_call(self, tool: str) -> str:
        return self.call.format(tool=tool)

    def for_more(self, offset: int) -> str:
        return self.more.format(offset=offset)

    def next_page(self, output: str, offset: int) -> str:
        return self.page.format(output=output, offset=offset)


FOR_MODELS: Final = Hints(
    overview='mcp({ server: "name" }) to list tools, mcp({ search: "..." }) to search',
    see_servers="Use mcp({}) to see available servers.",
    search='Use mcp({ search: "..." }) to search.',
    connect='Use mcp({{ connect: "{server}" }}) or greenroom reconnect {typed} to retry.',
    instructions='mcp({{ instructions: "{server}" }}) for all of them',
    learn='Use mcp({ connect: "name" }) to ask one what it has.',
    mend='Use mcp({{ connect: "{server}" }}) to try again; `greenroom explain {typed}` says more.',
    try_now=(
        'Use mcp({{ connect: "{server}" }}) when its cause is mended; `greenroom explain {typed}` says more.'
    ),
)
FOR_META: Final = Hints(
    overview='mcp_discover({ server: "name" }) to list tools, mcp_discover({ query: "..." }) to search',
    see_servers="Use mcp_discover({}) to see available servers.",
    search='Use mcp_discover({ query: "..." }) to search.',
    connect='Use mcp_provision({{ intent: "{server}", autoProvision: true }}) to retry.',
    instructions='mcp_discover({{ instructions: "{server}" }}) for all of them',
    learn='Use mcp_provision({ intent: "name", autoProvision: true }) to ask one what it has.',
    mend=(
        'Use mcp_provision({{ intent: "{server}", autoProvision: true }}) to try again; '
        "`greenroom explain {typed}` says more."
    ),
    try_now=(
        'Use mcp_provision({{ intent: "{server}", autoProvision: true }}) when its cause is mended; '
        "`greenroom explain {typed}` says more."
    ),
    call='mcp_call({{ tool: "{tool}" }})',
    page='mcp_discover({{ output: "{output}", offset: {offset} }})',
    skill="",
)
FOR_PEOPLE: Final = Hints(
    overview="`greenroom tools NAME` lists tools, `greenroom search WORDS` finds them",
    see_servers="To see the configured servers: greenroom status",
    search="To find one: greenroom search WORDS",
    connect="To ask it what it has: greenroom refresh {typed}",
    instructions='a client\'s mcp({{ instructions: "{server}" }}) has all of them',
    learn="",  # a person is told so in the sentence about them
    mend="To try again: `greenroom refresh {typed}`. To see why: `greenroom explain {typed}`",
    mend_program="To see what to do: `greenroom explain {typed}`",
    try_now="To see why: `greenroom explain {typed}`. When that is mended, do not wait: `greenroom refresh {typed}`",
    describe="greenroom describe {tool}",
    page="the same command with `| less` behind it",
    skill='a client reads it with mcp({{ skill: "{skill}" }})',
    more="add --offset {offset} for more",
    nothing_found="To see all tools: greenroom tools",
    for_people=True,
)
