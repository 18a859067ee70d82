"""What a key of a configuration file is. The keys themselves are the fields of the model (`model`).

A key knows where its value goes in the model and what happens when the value is wrong. A wrong value of an
`identity` key breaks its server. Such keys say whether it runs, which program runs, with what, what it may show and
who shares it, and half of that is worse than none of it. The other keys are policy. Their default is used and the
problem is listed, for a server with the wrong idle timeout is better than no server. (A wrong setting has two
outcomes as well. A file that was named is refused; a file that was only found is served with the default.)

A model is a struct of msgspec whose metaclass keeps its fields by name, with their keys. Rejected: a class of attrs
with the keys as metadata. The 88 fields of the settings took 6 ms of each start, because attrs writes the source of
their methods and compiles it; as a struct they take 0.05.

Here are also the kinds of values that are objects with keys of their own: how to log in, the command that gives
headers, and how tools are shown otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, StructMeta, UnsetType
from msgspec.structs import replace

from ..protocol.json_values import is_array, is_object
from ..protocol.lazy_patterns import lazy_pattern
from .value_kinds import BadValueError, Item, Text, TextMap, Texts, ValueKind, did_you_mean, matching, wanted


class Key(msgspec.Struct, frozen=True):
    """One key of a file, and its `attribute` in the model. A key of a group has the group before its name:
    `restartBackoff.minMs`. `in_words`: the default, when that of the model says too little."""

    name: str
    kind: ValueKind
    meaning: str
    identity: bool
    in_words: str
    attribute: str = ""

    def in_file_units(self, value: Any) -> Any:
        """A value of the model in the form of a file: seconds in the key's unit, enums as their word."""
        if value is None or isinstance(value, str | bool):
            return value
        if isinstance(value, int | float):
            return _tidy(value / self.kind.scale)
        if is_array(value):
            return list(value)
        return dict(value) if is_object(value) else value.value


def _tidy(number: float) -> float | int:
    rounded = round(number, 6)
    return int(rounded) if rounded == int(rounded) else rounded


class ModelField(Struct, frozen=True):
    """A field of a model. `key`: what a file says of it; None: no file does. `shown`: its value in a `repr`, in words;
    False: it is left out. `compared`: whether two models that differ in it alone differ."""

    default: Any
    key: Key | None = None
    shown: Callable[[Any], str] | bool = True
    compared: bool = True

    @property
    def of_struct(self) -> Any:
        """Its default as a struct says it. Models do not change, so they share what is no plain value."""
        default = self.default
        shared = is_object(default) or isinstance(default, Struct)
        return msgspec.field(default_factory=lambda: default) if shared else default


class _ModelType(StructMeta):
    """Makes a model: a struct whose fields are known by name, with their keys."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **options: Any) -> type:
        fields = {member: said for member, said in members.items() if isinstance(said, ModelField)}
        plain = {member: said.of_struct for member, said in fields.items()}
        made: Any = super().__new__(cls, name, bases, members | plain, **options)
        made.__fields__ = fields
        uncompared = {member for member, said in fields.items() if not said.compared}
        compared = [member for member in made.__struct_fields__ if member not in uncompared]
        made.__compared__ = attrgetter(*compared) if compared else None
        return made


class Model(Struct, frozen=True, eq=False, metaclass=_ModelType):
    """What a file says, as a struct. Its fields are made with `key` or `field`."""

    __fields__: ClassVar[Mapping[str, ModelField]]
    __compared__: ClassVar[Callable[[Any], Any]]

    def __eq__(self, other: object) -> bool:
        compared = type(self).__compared__
        return compared(self) == compared(other) if type(other) is type(self) else NotImplemented

    __hash__: ClassVar[None] = None  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  (it has objects of files)

    def __repr__(self) -> str:
        said = (
            f"{name}={text}" for name in self.__struct_fields__ if (text := self._shown(name)) is not None
        )
        return f"{type(self).__name__}({', '.join(said)})"

    def _shown(self, name: str) -> str | None:
        said, value = type(self).__fields__.get(name), getattr(self, name)
        shown = True if said is None else said.shown
        if isinstance(shown, bool):
            return repr(value) if shown else None
        return shown(value)


def field(default: Any = None, *, shown: Callable[[Any], str] | bool = True, compared: bool = True) -> Any:
    """A field of a model that no file says."""
    return ModelField(default, None, shown, compared)


def key(
    name: str,
    kind: ValueKind,
    meaning: str,
    default: Any = None,
    *,
    identity: bool = False,
    in_words: str = "",
    shown: Callable[[Any], str] | bool = True,
) -> Any:
    """The field of a model whose value a file gives under `name`. `in_words`: the default, when that of the model says
    too little."""
    return ModelField(default, Key(name, kind, meaning, identity, in_words), shown)


def keys_of(model: type[Model]) -> tuple[Key, ...]:
    """The keys of a model, in the order of its fields."""
    fields = model.__fields__.items()
    return tuple(replace(each.key, attribute=name) for name, each in fields if each.key is not None)


def grouped(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Values of keys in the form of a file: the keys of a group are in an object."""
    found: dict[str, Any] = {}
    for name, value in values:
        *groups, last = name.split(".")
        inner = found
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return found


def _said(struct: Struct, absent: object) -> dict[str, Any]:
    """The values of an object that a file gives, under the names of the file."""
    names = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    values = ((name, getattr(struct, field)) for name, field in names)
    return {name: value for name, value in values if value is not absent}


# What a file is called at its top.
SECTIONS: Final = ("mcpServers", "mcp-servers", "servers")
IMPORT_KINDS: Final = (
    "cursor", "claude-code", "claude-desktop", "vscode", "windsurf", "codex", "opencode", "pi",
)  # fmt: skip


# ---- `auth` and `oauth` of an HTTP server: whether and how to log in -------------------------------------------------
#
# `oauth` is an object of a few texts, or `false`. Its names are those of the pi adapter, so that its files can be read
# as they are. A wrong value breaks the server: with half of them the login would be another one. Other clients have
# further names; these have no effect, and a warning says so.


_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
IDENTITY_GRANTS: Final = ("id_jag", "token_exchange")  # with which a server is called as its caller


class _LoginSettings(Struct, rename="camel"):
    grant_type: (
        Literal[
            "authorization_code",
            "client_credentials",
            "device_code",
            "id_jag",
            "token_exchange",
            "urn:ietf:params:oauth:grant-type:token-exchange",
        ]
        | None
    ) = None
    client_id: Text | None = None
    client_secret: Text | None = None
    client_metadata_url: Text | None = None
    issuer: Text | None = None
    scope: Text | None = None
    redirect_uri: Text | None = None
    client_name: Text | None = None
    client_uri: Text | None = None
    logo_uri: Text | None = None
    authorization_params: TextMap | None = None
    identity_provider: Text | None = None
    identity_client_id: Text | None = None
    identity_client_secret: Text | None = None
    subject_token: Text | None = None
    subject_token_type: Literal["access_token", "id_token", "jwt"] | None = None
    audience: Text | None = None
    resource: Text | None = None


# What a grant cannot do without; and of the names that only serve to call as somebody, the grants that they belong to.
_NEEDED: Final[Mapping[str | None, tuple[str, ...]]] = {
    "client_credentials": ("clientId", "clientSecret"),
    "id_jag": ("identityProvider", "issuer", "clientId"),
    "token_exchange": ("issuer", "clientId"),
}
_OF_IDENTITY: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("identityProvider", "identityClientId", "identityClientSecret"), ("id_jag",)),
    "audience": ("token_exchange",),
    **dict.fromkeys(("subjectToken", "subjectTokenType", "resource"), IDENTITY_GRANTS),
}
_GIVEN: Final = lazy_pattern(r"\$\{session\.\w+\}")
_OF_PERSON: Final = ("redirectUri", "authorizationParams", "clientMetadataUrl")


# What the flow itself puts into the request for a login; a configured value would break its checks.
RESERVED: Final = frozenset(
    {"response_type", "client_id", "redirect_uri", "state", "code_challenge", "code_challenge_method"}
)


_No: TypeAlias = Annotated[bool, Meta(extra_json_schema={"enum": [False]})]


def _auth(read: str | bool) -> str | bool:
    if read is True:
        raise BadValueError('must be "oauth", "bearer" or false, is true')
    return "oauth" if read == "oauth" else False


def _login(read: _LoginSettings | bool) -> dict[str, Any] | bool:
    if read is True:
        raise BadValueError("must be an object or false, is true")
    if read is False:
        return False
    for name in read.authorization_params or ():
        if name in RESERVED:
            raise BadValueError("is set by the login itself: remove it", "authorizationParams", name)
    found = _said(read, None)
    if read.grant_type == _EXCHANGE:
        found["grantType"] = "token_exchange"
    grant: str | None = found.get("grantType")
    for name in _NEEDED.get(grant, ()):
        if name not in found:
            raise BadValueError(f'"{grant}" needs it: add "{name}"', name)
    if grant in IDENTITY_GRANTS:
        for name in found:
            if name in _OF_PERSON or grant not in _OF_IDENTITY.get(name, (grant,)):
                raise BadValueError(f'does not go with "{grant}": remove it', name)
    subject = read.subject_token
    if grant in IDENTITY_GRANTS and subject is not None and _GIVEN.fullmatch(subject) is None:
        what = "must be ${session.NAME} and nothing else, so that each caller brings his own; or leave it out"
        raise BadValueError(what, "subjectToken")
    return found


def without_effect(oauth: Any) -> Iterator[tuple[str, str]]:
    """The names in `oauth` that have no effect, each with a text about it."""
    names = _LoginSettings.__struct_encode_fields__
    is_as_caller = is_object(oauth) and oauth.get("grantType") in (*IDENTITY_GRANTS, _EXCHANGE)
    for name in oauth if is_object(oauth) else ():
        if str(name) not in names:
            yield str(name), f"has no effect on a login{did_you_mean(str(name), names)}"
        elif str(name) in _OF_IDENTITY and not is_as_caller:
            grants = " or ".join(f'"{grant}"' for grant in _OF_IDENTITY[str(name)])
            yield str(name), f'has no effect without the "grantType" {grants}'


AUTH: Final = ValueKind(
    Annotated[Literal["oauth", "bearer"] | _No, wanted('"oauth", "bearer" or false')],
    "`oauth` / `bearer` / false",
    _auth,
)
OAUTH: Final = ValueKind(
    Annotated[_LoginSettings | _No, wanted("an object or false")], "object / false", _login
)


# ---- `requestHeadersCommand` of an HTTP server: a program that gives further headers for each request ----------------
#
# Its names are those of the pi adapter, so that its files can be read as they are. A wrong value breaks the server,
# because requests without these headers would be other requests.

_TIMEOUT: Final = 10_000.0  # milliseconds, when the file says nothing
_Timeout: TypeAlias = Annotated[float, wanted("a number of milliseconds above 0", gt=0, le=60_000)]


class _HeadersCommand(Struct, forbid_unknown_fields=True, rename="camel"):
    command: Text
    args: Texts | None = None
    env: TextMap | None = None
    timeout_ms: _Timeout | None = None


def _headers_command(read: _HeadersCommand) -> Mapping[str, Any]:
    seconds = (_TIMEOUT if read.timeout_ms is None else read.timeout_ms) / 1000
    return {"command": read.command, "args": read.args or (), "env": read.env or {}, "timeoutMs": seconds}


REQUEST_HEADERS: Final = ValueKind(
    Annotated[_HeadersCommand, wanted('an object like {"command": "…"}')], "object", _headers_command
)


# ---- `placement`: where a server may run in a cluster ---------------------------------------------------------------


class _Placement(Struct, forbid_unknown_fields=True):
    resources: Mapping[str, Annotated[float, wanted("a number of 0 or more", ge=0)]] | None = None
    labels: TextMap | None = None


def _placement(read: _Placement) -> Mapping[str, Mapping[str, Any]]:
    return {"resources": dict(read.resources or {}), "labels": dict(read.labels or {})}


PLACEMENT: Final = ValueKind(
    Annotated[_Placement, wanted('an object like {"labels": {"zone": "a"}}')], "object", _placement
)


# ---- `http` of an HTTP API: requests as tools, written by hand -------------------------------------------------------
#
# Its names are mostly those of mcp-gateway's adapter. A wrong value breaks the server: half of a request is another
# request. What becomes of a tool is decided in `openapi.http_tools`, which also looks at what its parts say together.

_ToolName: TypeAlias = Annotated[
    str, matching("[A-Za-z0-9_.-]{1,64}", 'a name of 1 to 64 letters, digits, "_", "-" and "."')
]
_RequestName: TypeAlias = Annotated[
    str, matching("[A-Za-z0-9_-]{1,64}", 'a name of 1 to 64 letters, digits, "_" and "-"')
]
_Schema: TypeAlias = Annotated[Mapping[str, Any], wanted("a JSON Schema, an object")]
_Styles: TypeAlias = Literal[
    "matrix",
    "label",
    "simple",
    "form",
    "spaceDelimited",
    "pipeDelimited",
    "tabDelimited",
    "deepObject",
    "cookie",
]


class _Argument(
    Struct, forbid_unknown_fields=True, rename={"place": "in", "allow_reserved": "allowReserved"}
):
    place: Literal["path", "query", "header", "cookie", "body"]
    name: Text | UnsetType = UNSET
    description: Item | UnsetType = UNSET
    required: bool | UnsetType = UNSET
    default: Any | UnsetType = UNSET
    schema: _Schema | UnsetType = UNSET
    style: _Styles | UnsetType = UNSET
    explode: bool | UnsetType = UNSET
    allow_reserved: bool | UnsetType = UNSET


class _RequestBody(Struct, forbid_unknown_fields=True, rename="camel"):
    media_type: Text | UnsetType = UNSET
    description: Item | UnsetType = UNSET
    required: bool | UnsetType = UNSET
    schema: _Schema | UnsetType = UNSET
    encoding: Annotated[Mapping[str, Any], wanted("an object")] | UnsetType = UNSET


_METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
_Method: TypeAlias = Annotated[
    str, matching("|".join((*_METHODS, *map(str.lower, _METHODS))), f"one of {', '.join(_METHODS)}")
]
_Arguments: TypeAlias = Annotated[Mapping[_ToolName, _Argument], wanted("an object of arguments")]


class _HttpTool(Struct, forbid_unknown_fields=True, rename="camel"):
    method: _Method
    path: Annotated[str, matching("/[^\\s#]*", 'a path like "/users/{id}"')]
    title: Item | UnsetType = UNSET
    description: Item | UnsetType = UNSET
    params: _Arguments | UnsetType = UNSET
    input_schema: _Schema | UnsetType = UNSET
    output_schema: _Schema | UnsetType = UNSET
    headers: TextMap | UnsetType = UNSET
    body: Annotated[_RequestBody, wanted("an object")] | UnsetType = UNSET


def _http_tool(read: _HttpTool) -> dict[str, Any]:
    found = {**_said(read, UNSET), "method": read.method.upper()}
    if read.params is not UNSET:
        found["params"] = {name: _said(one, UNSET) for name, one in read.params.items()}
    if read.body is not UNSET:
        found["body"] = _said(read.body, UNSET)
    return found


HTTP_TOOLS: Final = ValueKind(
    Annotated[
        Mapping[_RequestName, _HttpTool], wanted('an object like {"tool": {"method": "GET", "path": "/…"}}')
    ],
    "tool → request",
    lambda read: {name: _http_tool(one) for name, one in read.items()},
)


# ---- `toolOverrides`: how tools are shown otherwise ------------------------------------------------------------------


class _Parameter(Struct, forbid_unknown_fields=True, rename="camel"):
    rename: _ToolName | UnsetType = UNSET
    hide: bool | UnsetType = UNSET
    description: Item | UnsetType = UNSET
    default: Any | UnsetType = UNSET
    null_is_nothing: bool | UnsetType = UNSET


class _Tool(Struct, forbid_unknown_fields=True):
    rename: _ToolName | UnsetType = UNSET
    hide: bool | UnsetType = UNSET
    description: Item | UnsetType = UNSET
    params: Annotated[Mapping[str, _Parameter], wanted("an object of parameters")] | UnsetType = UNSET


_Tools: TypeAlias = Annotated[Mapping[str, _Tool], wanted('an object like {"tool": {"rename": "…"}}')]


def _overrides_of_any(read: Mapping[str, _Tool]) -> dict[str, Any]:
    """Overrides for whichever server has such a tool. Two may give one name: those tools may be of two servers."""
    return {tool: _override(one, tool) for tool, one in read.items()}


def _overrides(read: Mapping[str, _Tool]) -> dict[str, Any]:
    _check_unique(read, "tools")
    return _overrides_of_any(read)


def _override(read: _Tool, tool: str) -> dict[str, Any]:
    found = _said(read, UNSET)
    if read.params is not UNSET:
        _check_unique(read.params, "parameters", tool, "params")
        found["params"] = {name: _said(one, UNSET) for name, one in read.params.items()}
    return found


def _check_unique(found: Mapping[str, _Tool | _Parameter], what: str, *where: str) -> None:
    taken: set[str] = set()
    for name, one in found.items():
        if one.hide is True:
            continue
        shown = name if one.rename is UNSET else one.rename
        new = shown.replace("-", "_")
        if new in taken:
            raise BadValueError(f'two {what} would be called "{shown}"', *where, name)
        taken.add(new)


def _overrides_of_each(read: Mapping[str, Mapping[str, _Tool]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for server, tools in read.items():
        try:
            found[server] = _overrides(tools)
        except BadValueError as error:
            raise BadValueError(error.what, server, *error.inside) from None
    return found


OVERRIDES: Final = ValueKind(_Tools, "tool → override", _overrides)
OVERRIDES_OF_ANY: Final = replace(OVERRIDES, then=_overrides_of_any)
OVERRIDES_OF_EACH: Final = ValueKind(
    Annotated[Mapping[str, _Tools], wanted("an object of servers")], "server → overrides", _overrides_of_each
)
