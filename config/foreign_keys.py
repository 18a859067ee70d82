"""Keys that other programs write into the same file, translated into ours.

Many clients read the same server entry, and each has some keys of its own. Here one entry becomes a table of
*givens* under our key names. Each given remembers where it was written, so that a message about `timeoutMs`
says `timeoutMs`. This happens before files are merged, because the rules of merging know one name for each
setting.

A foreign key has one of three fates. It means one of our keys and is read as that key. Or it belongs to another
program and has no effect here. Or it is unknown, and the message suggests what it may have been
meant to be. A key without effect is kept as read.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeGuard

import msgspec
from msgspec.structs import replace

from ..protocol.errors import NO_EFFECT_HERE, Problem, place
from .model import Isolation
from .reading import TEXT, BadValueError, is_array, is_object, is_whole, kind_of

ALIASES: Final = {
    "serverUrl": "url",
    "httpUrl": "url",
    "environment": "env",
    "timeoutMs": "requestTimeoutMs",
    "startupTimeoutMs": "connectTimeoutMs",
    "approveTools": "approve",
    "disabledTools": "excludeTools",
    "enabledTools": "includeTools",
    "workingDirectory": "cwd",
    "working_directory": "cwd",
    "bearer_token_env_var": "bearerTokenEnv",
    "disabled_tools": "excludeTools",
    "enabled_tools": "includeTools",
    "http_headers": "headers",
    "startup_timeout_ms": "connectTimeoutMs",
}
SETTING_ALIASES: Final = {"approveTools": "approve"}
_CLIENT: Final = {"CLIENT_ID": "clientId", "CLIENT_SECRET": "clientSecret", "scopes": "scope"}
_HTTP_WORDS: Final = {"http", "streamable-http", "streamablehttp", "streamable_http", "remote", "sse"}
_STDIO_WORDS: Final = {"stdio", "local"}
_ISOLATIONS: Final = {each.value for each in Isolation}


class Given(msgspec.Struct, frozen=True):
    """One value from one file, and its place there: the source, then the path of keys as they were written."""

    value: Any
    source: str
    path: tuple[str | int, ...]

    def place(self, *inside: str | int) -> str:
        return place(self.source, *self.path, *inside)

    def problem(self, what: str, *inside: str | int, fatal: bool = False) -> Problem:
        return Problem(self.place(*inside), what, fatal)


Givens = dict[str, Given]
Note = Callable[[Problem], object]


def is_remark(key: str) -> bool:
    """Whether a key is a remark for the reader by custom: `$schema`, `_comment`, `//`."""
    return key.startswith(("$", "_", "//"))


def givens(entry: Mapping[Any, Any], source: str, path: tuple[str | int, ...], note: Note) -> Givens:
    """One server entry under our key names. Problems go to `note`."""
    found: Givens = {}
    for key, value in entry.items():
        if not _is_key(key):
            note(_no_key(key, place(source, *path)))
        elif not is_remark(key):
            _put(found, ALIASES.get(key, key), Given(value, source, (*path, key)), note)
    _read_api(found, note)
    _read_type(found, note)
    _read_enabled(found)
    _read_era(found)
    _read_lifecycle(found, note)
    if (oauth := found.get("oauth")) is not None and oauth.value is True:  # MetaMCP's word for it
        del found["oauth"]
        found.setdefault("auth", replace(oauth, value="oauth"))
    _read_client(found)
    _read_login(found, note)
    return found


# ---- HTTP APIs, as mcp-gateway's adapter writes them ----------------------------------------------------------------
#
# There `type` says what a server is, and `spec`, `tools` and `auth` belong to it. What only changes answers, or names
# one operation of the document otherwise, has no effect here.

_ADAPTERS_OWN: Final[Mapping[str, str]] = {
    "endpoints": 'write "toolOverrides" for other names and descriptions, by the names of the tools',
    "responseTransforms": "answers are passed on as they are",
    "responseOverrides": "answers are passed on as they are",
}


def _read_api(found: Givens, note: Note) -> None:
    said = found["type"].value if "type" in found else None
    if said == "openapi" and "spec" in found:
        found.setdefault("openapi", found.pop("spec"))
    if said == "http" and "tools" in found and "url" not in found:
        found.setdefault("http", found.pop("tools"))
    if "openapi" not in found and "http" not in found:
        return
    if "baseUrl" in found:
        _put(found, "url", found.pop("baseUrl"), note)
    if said in ("openapi", "http"):
        del found["type"]
    _read_policy(found)
    _read_discovery(found, note)
    _read_by_hand(found, note)
    _read_defaults(found, note)
    _read_api_login(found, note)
    for key, advice in _ADAPTERS_OWN.items():
        given = found.pop(key, None)
        if given is not None and given.value:
            note(given.problem(f"has no effect here: {advice}"))


def _read_policy(found: Givens) -> None:
    """There `specHash` only warns, unless `specHashPolicy` says "fail"."""
    policy = found.pop("specHashPolicy", None)
    if policy is not None and policy.value in ("warn", "ignore"):
        found.pop("specHash", None)


def _read_discovery(found: Givens, note: Note) -> None:
    """`autoDiscover`: which operations there are; `false` leaves those that `endpoints` names."""
    given = found.pop("autoDiscover", None)
    if given is None or given.value is None or given.value is True:
        return
    if given.value is False:
        endpoints = found["endpoints"].value if "endpoints" in found else None
        named = [
            f"{str(method).upper()} {path}"
            for path, methods in (endpoints.items() if is_object(endpoints) else ())
            for method in (methods if is_object(methods) else ())
        ]
        found.setdefault("includeOperations", replace(given, value=named))
    elif is_object(given.value):
        for theirs, ours in (("include", "includeOperations"), ("exclude", "excludeOperations")):
            if theirs in given.value:
                found.setdefault(ours, replace(given, value=given.value[theirs], path=(*given.path, theirs)))
    else:
        note(given.problem(f"must be true, false or an object, is {kind_of(given.value)}", fatal=True))


def _read_by_hand(found: Givens, note: Note) -> None:
    """Take the adapter's own fields out of tools that are written by hand, and read `overrides` as such tools, each in
    the place of the operation that it matches."""
    overrides = found.pop("overrides", None)
    by_hand: dict[str, Any] = {}
    tools: Any = (
        overrides.value.get("tools") if overrides is not None and is_object(overrides.value) else None
    )
    for name, said in tools.items() if is_object(tools) else ():
        if not is_object(said) or not is_object(said.get("request")):
            continue
        described = {"description": said["description"]} if "description" in said else {}
        by_hand[name] = {**said["request"], **described}
        match: Any = said.get("match")
        replaced = _matched(match) if is_object(match) else None
        if replaced is not None and overrides is not None:
            before = found.get("excludeOperations", replace(overrides, value=[]))
            others: list[Any] = list(before.value) if is_array(before.value) else []
            found["excludeOperations"] = replace(before, value=[*others, replaced])
    if by_hand and overrides is not None:
        before = found.get("http", replace(overrides, value={}))
        found["http"] = replace(before, value={**before.value, **by_hand})
    given = found.get("http")
    if given is None or not is_object(given.value):
        return
    for name, said in given.value.items():
        response: Any = said.get("response") if is_object(said) else None
        if is_object(response) and response.get("transforms"):
            what = "has no effect here: answers are passed on as they are"
            note(given.problem(what, str(name), "response", "transforms"))
    found["http"] = replace(given, value={name: _ours(said) for name, said in given.value.items()})


def _ours(said: Any) -> Any:
    """A tool as it is written here: `response` is its `outputSchema`, and empty values are always allowed."""
    if not is_object(said):
        return said
    ours: dict[Any, Any] = {**said}
    if is_object(response := ours.pop("response", None)) and "outputSchema" in response:
        ours.setdefault("outputSchema", response["outputSchema"])
    if is_object(params := ours.get("params")):
        ours["params"] = {
            name: {key: value for key, value in one.items() if key != "allowEmptyValue"}
            if is_object(one)
            else one
            for name, one in params.items()
        }
    return ours


def _matched(match: Mapping[Any, Any]) -> str | None:
    if isinstance(match.get("operationId"), str):
        return match["operationId"]
    if isinstance(match.get("path"), str):
        return f"{str(match.get('method') or '*').upper()} {match['path']}"
    return None


def _read_defaults(found: Givens, note: Note) -> None:
    """`defaults`: seconds for a request, and headers."""
    given = found.pop("defaults", None)
    if given is None or not is_object(given.value):
        return
    for key, value in given.value.items():
        inner = replace(given, value=value, path=(*given.path, str(key)))
        if key == "timeout":
            if value:
                found.setdefault("requestTimeoutMs", replace(inner, value=_milliseconds(value)))
        elif key == "headers" and is_object(value):
            own: Any = found["headers"].value if "headers" in found else None
            found["headers"] = replace(inner, value={**value, **(own if is_object(own) else {})})
        else:
            note(inner.problem('has no effect here: write "style" and "explode" for each argument'))


def _read_api_login(found: Givens, note: Note) -> None:
    """`auth` with a `type`: a token, a header, a user with a password, or a part of the query."""
    given = found.get("auth")
    if given is None or not is_object(given.value) or "type" not in given.value:
        return
    del found["auth"]
    said: Mapping[Any, Any] = given.value
    match said["type"]:
        case "none":
            pass
        case "bearer" if isinstance(said.get("token"), str):
            found.setdefault("bearerToken", replace(given, value=said["token"], path=(*given.path, "token")))
        case "header" if isinstance(said.get("name"), str):
            _add_to(found, "headers", given, {said["name"]: said.get("value")})
        case "basic" if _is_plain(said.get("username"), said.get("password")):
            pair = base64.b64encode(f"{said['username']}:{said['password']}".encode()).decode()
            _add_to(found, "headers", given, {"Authorization": f"Basic {pair}"})
        case "query" if (
            isinstance(said.get("name"), str) and isinstance(said.get("value"), str) and "url" in found
        ):
            url = found["url"]
            if isinstance(url.value, str):
                mark = "&" if "?" in url.value else "?"
                found["url"] = replace(url, value=f"{url.value}{mark}{said['name']}={said['value']}")
        case _:
            what = 'cannot be read: write "bearerToken", "headers", or the query of "baseUrl"'
            note(given.problem(what, fatal=True))


def _is_plain(*texts: Any) -> bool:
    """Whether these are texts without references: they are encoded before a reference could be expanded."""
    return all(isinstance(text, str) and not {"$", "{"} & {*text} for text in texts)


def _add_to(found: Givens, key: str, given: Given, more: Mapping[str, Any]) -> None:
    before = found.get(key, replace(given, value={}))
    own: Any = before.value
    found[key] = replace(before, value={**more, **(own if is_object(own) else {})})


def _is_key(key: Any) -> TypeGuard[str]:
    return isinstance(key, str) and is_whole(key)


def _no_key(key: Any, where: str) -> Problem:
    kind = "half a character" if isinstance(key, str) else type(key).__name__
    return Problem(where, f"has a key that is no string ({kind}); it is ignored", fatal=False)


def _read_login(found: Givens, note: Note) -> None:
    """Only names that are strings can have an effect on a login; YAML has others."""
    given = found.get("oauth")
    if given is None or not is_object(given.value):
        return
    for key in given.value:
        if not _is_key(key):
            note(_no_key(key, given.place()))
    found["oauth"] = replace(given, value={k: v for k, v in given.value.items() if _is_key(k)})


def _read_client(found: Givens) -> None:
    """Read the client of a login, which Cursor writes into `auth`."""
    given = found.get("auth")
    if given is None or not is_object(given.value) or "CLIENT_ID" not in given.value or "oauth" in found:
        return
    client = {_CLIENT.get(key, key): value for key, value in given.value.items()}
    scopes: Any = client.get("scope")
    if is_array(scopes) and all(isinstance(scope, str) for scope in scopes):
        client["scope"] = " ".join(scopes) or None
    found["oauth"] = replace(found.pop("auth"), value=client)


def _put(found: Givens, name: str, given: Given, note: Note) -> None:
    if name in found:
        note(given.problem(f'says the same as "{found[name].path[-1]}", which is used; remove one of them'))
    else:
        found[name] = given


def _read_type(found: Givens, note: Note) -> None:
    """Read `type` and similar keys, which are hints. Only SSE says more than `command` or `url` do."""
    for key in ("type", "transport", "transportType"):
        given = found.pop(key, None)
        if given is None or given.value is None:
            continue
        word = given.value.lower() if isinstance(given.value, str) else ""
        if word == "sse":
            found.setdefault("httpTransport", replace(given, value="sse"))
        if wrong := _type_complaint(word, found):
            note(given.problem(wrong))


def _type_complaint(word: str, found: Givens) -> str | None:
    if word not in _HTTP_WORDS | _STDIO_WORDS:
        return 'is no transport we know; it is ignored, "command", "url" or "socket" decide'
    if word in _HTTP_WORDS and "command" in found:
        return f'"{word}" does not go with "command"; it is ignored, the command is started'
    if word in _STDIO_WORDS and "url" in found:
        return f'"{word}" does not go with "url"; it is ignored, the URL is called'
    return None


def _read_enabled(found: Givens) -> None:
    """`enabled` is the contrary of `disabled`. A value that is neither true nor false is read as one of `disabled`,
    which breaks the server, for it may have been meant to be off."""
    given = found.pop("enabled", None)
    if given is None or given.value is None:
        return
    if not isinstance(given.value, bool):
        is_off = "disabled" in found and found["disabled"].value is True
        found["disabled"] = found["disabled"] if is_off else given
    elif not given.value:
        found.setdefault("disabled", replace(given, value=True))


def _read_era(found: Givens) -> None:
    """Read pi's `protocolVersion`, which insists on an era: `legacy`, a version of the newer era, or `auto`."""
    given = found.get("protocolVersion")
    if given is None or not isinstance(given.value, str):
        return
    from ..protocol.jsonrpc.terms import (
        MODERN_VERSIONS,  # few files need it, and it takes longer to import than the rest
    )

    eras = {"auto": None, "legacy": "handshake", **dict.fromkeys(MODERN_VERSIONS, "stateless")}
    if given.value in eras:
        del found["protocolVersion"]
        if (era := eras[given.value]) is not None:
            found.setdefault("era", replace(given, value=era))


def _read_lifecycle(found: Givens, note: Note) -> None:
    """Read the values of `lifecycle` that other programs use: an isolation, `ephemeral`, `lazy-keep-alive`, `{mode,
    idleTimeoutMs}`."""
    given = found.get("lifecycle")
    if given is not None and is_object(given.value):
        given = _open_lifecycle(found, given, note)
    if given is None or not isinstance(given.value, str):
        return
    if given.value == "lazy-keep-alive":
        found["lifecycle"] = replace(given, value="lazy")
        found.setdefault("idleTimeout", replace(given, value=0))
    elif given.value in _ISOLATIONS or given.value == "ephemeral":
        del found["lifecycle"]
        isolation = "per_call" if given.value == "ephemeral" else given.value
        _put(found, "isolation", replace(given, value=isolation), note)


def _open_lifecycle(found: Givens, given: Given, note: Note) -> Given | None:
    rest: dict[Any, Any] = {**given.value}
    mode, idle = rest.pop("mode", None), rest.pop("idleTimeoutMs", None)
    for key in rest:
        note(given.problem("unknown key; it is ignored, mode and idleTimeoutMs are known", str(key)))
    if isinstance(idle, int | float) and not isinstance(idle, bool):
        minutes = replace(given, value=_minutes(idle), path=(*given.path, "idleTimeoutMs"))
        found.setdefault("idleTimeout", minutes)
    elif idle is not None:
        what = f"must be a number of milliseconds, is {kind_of(idle)}; the default is used"
        note(given.problem(what, "idleTimeoutMs"))
    del found["lifecycle"]
    if mode is None:
        return None
    found["lifecycle"] = replace(given, value=mode, path=(*given.path, "mode"))
    return found["lifecycle"]


def _minutes(milliseconds: float) -> float:
    try:
        return milliseconds / 60_000
    except OverflowError:  # an integer beyond every float
        return float("inf")


# ---- the adapter's file ------------------------------------------------------------------------------------
_ADAPTER_SECONDS: Final = {"callTimeout": "requestTimeoutMs", "startupTimeout": "connectTimeoutMs"}
_ADAPTER_DOOR: Final = {"bind": "http.listen", "mcpBearerToken": "http.tokens"}
_ADAPTER_AS_IS: Final = {"restartPolicy": "restartPolicy", "restartBackoff": "restartBackoff"}


def adapter_settings(adapter: Mapping[Any, Any], source: str, note: Note) -> Givens:
    """The `adapter` block of mcp-gateway's adapter as our settings."""
    found: Givens = {}
    for key, value in adapter.items():
        given = Given(value, source, ("adapter", str(key)))
        if key in _ADAPTER_SECONDS:
            found[_ADAPTER_SECONDS[key]] = replace(given, value=_milliseconds(value))
        elif key == "stdioLifecycle":
            found["isolation"] = given
        elif key == "transforms" and is_object(value):
            _read_transforms(found, given, note)
        elif key in _ADAPTER_AS_IS:
            found[_ADAPTER_AS_IS[key]] = given
        elif key in _ADAPTER_DOOR:
            _read_door(found, given, note)
        else:
            note(given.problem("has no effect here"))
    found.setdefault("isolation", Given("per_session", source, ("adapter",)))
    return found


def _read_door(found: Givens, given: Given, note: Note) -> None:
    """`bind` and `mcpBearerToken` as parts of our setting `http`. An empty token means none there. It is refused here,
    for a file that has the key wants one."""
    part = _ADAPTER_DOOR[str(given.path[-1])]
    if given.value is None:
        return
    try:
        said = TEXT.read(given.value).strip()
    except BadValueError as wrong:
        note(given.problem(wrong.what, fatal=True))
        return
    found[part] = replace(given, value={"adapter": said} if part == "http.tokens" else said)


def _read_transforms(found: Givens, given: Given, note: Note) -> None:
    """`transforms` as our setting `toolOverrides`, which is for tools of every server as well."""
    for key, value in given.value.items():
        inner = replace(given, value=value, path=(*given.path, str(key)))
        if key != "toolOverrides":
            note(inner.problem("has no effect here"))
            continue
        tools: Any = value
        if is_object(value):
            tools = {
                tool: {k: _transformed_params(v) if k == "params" else v for k, v in said.items()}
                if is_object(said)
                else said
                for tool, said in value.items()
            }
        found["toolOverrides"] = replace(inner, value=tools)


def _transformed_params(params: Any) -> Any:
    return {name: _transformed(said) for name, said in params.items()} if is_object(params) else params


def _transformed(said: Any) -> Any:
    """There, what is not `visible` is hidden, and null is nothing unless `treatNullAsMissing` is false."""
    if not is_object(said):
        return said
    ours = {key: value for key, value in said.items() if key not in ("visible", "treatNullAsMissing")}
    visible, as_missing = said.get("visible", True), said.get("treatNullAsMissing", True)
    if visible is not True:
        ours["hide"] = not visible if isinstance(visible, bool) else visible
    if "default" in said and as_missing is not False:
        ours["nullIsNothing"] = as_missing
    return ours


def _milliseconds(seconds: Any) -> Any:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return seconds
    try:
        return seconds * 1000.0
    except OverflowError:
        return float("inf")


# ---- Keys of other programs that have no effect here, and what is said of them --------------------------------------
#
# A file says it once, however many of its servers have the key, and with what to write instead if there is something.
# Nothing is said of keys that only describe a server, nor where a value asks for nothing (`"autoApprove": []`). All of
# them are kept as read.

DESCRIBE: Final = frozenset(
    {"description", "gallery", "icon", "icons", "name", "remoteConfigured", "source", "title", "version"}
)
_ASKING: Final = 'here "approve" says which calls a person has to allow; without it none'
_LOGIN: Final = 'write "auth": "oauth", a "bearerToken" or a "requestHeadersCommand"'
_RESTART: Final = "it is not started again when files change; `greenroom reconnect` does that"
NO_EFFECT: Final[Mapping[str, str]] = {
    "alwaysAllow": _ASKING,
    "authProviderType": _LOGIN,
    "autoApprove": _ASKING,
    "baseUrl": 'write "openapi" or "http" beside it, what an HTTP API has; an MCP endpoint goes into "url"',
    "bearerTokenStore": 'write "bearerToken": {"keyring": "service/name"}',
    "criticality": "",
    "debug": "what it writes to stderr is shown when it fails",
    "dev": _RESTART,
    "headersHelper": 'write "requestHeadersCommand"',
    "literalEnv": "variables in its env are expanded",
    "pluginDataDir": "",
    "protocolVersion": 'write "era": "handshake" or "stateless"',
    "required": "a server that fails keeps no other from being served",
    "sandbox": "it runs without a sandbox",
    "sandboxEnabled": "it runs without a sandbox",
    "searchKeywords": 'what is searched are names and descriptions; "toolOverrides" can change those',
    "spec": 'an OpenAPI document goes into "openapi"',
    "targetAudience": _LOGIN,
    "targetServiceAccount": _LOGIN,
    "timeout": 'clients disagree about its unit; write "requestTimeoutMs"',
    "trace": "`greenroom serve --events FILE` writes all events",
    "trust": _ASKING,
    "watchPaths": _RESTART,
}
# Settings of pi that are about its own screen, or done otherwise here.
_SCREEN: Final = "only for pi's own screen"
_CLIENTS: Final = "what a client can answer decides"
SETTINGS_NO_EFFECT: Final[Mapping[str, str]] = {
    "agentPluginPaths": "",
    "authRequiredMessage": "",
    "autoAuth": "`greenroom auth S` logs in",
    "collapsedResultLines": _SCREEN,
    "disableProxyTool": "`greenroom serve --expose direct` shows no `mcp` tool",
    "elicitation": _CLIENTS,
    "freezeDirectTools": "",
    "hostConfigDiscovery": 'name the programs in "imports"',
    "mcpFooterStatus": _SCREEN,
    "notifyOnStartupConnect": _SCREEN,
    "oauthCredentialStore": "logins in encrypted files are not read",
    "sampling": _CLIENTS,
    "samplingAutoApprove": _CLIENTS,
    "scriptMode": "`greenroom serve --expose meta` has a tool for scripts",
    "showStatusIcon": _SCREEN,
    "toolResultRendering": _SCREEN,
    "trace": "`greenroom serve --events FILE` writes all events",
    "warnOnLargeDirectTools": _SCREEN,
}
_ON_BY_DEFAULT: Final = frozenset({"elicitation", "sampling"})  # whose `false` asks for something
_NAMED: Final = 5  # servers that are named in a line


def foreign_keys(entries: Mapping[str, Givens]) -> Iterable[Problem]:
    """The problems of keys without effect in the entries of servers."""
    groups: dict[tuple[str, str], list[str]] = {}
    for server, entry in entries.items():
        for key in NO_EFFECT.keys() & entry.keys():
            if not _asks_nothing(entry[key].value):
                groups.setdefault((entry[key].source, key), []).append(server)
    for (source, key), servers in sorted(groups.items(), key=lambda group: group[0]):
        advice = f" ({NO_EFFECT[key]})" if NO_EFFECT[key] else ""
        what = f"has no effect here; it is kept as read{advice}"
        given = entries[servers[0]][key]
        if len(servers) == 1:
            yield Problem(given.place(), what, fatal=False, code=NO_EFFECT_HERE)
        else:
            more = f" and {len(servers) - _NAMED} more" if len(servers) > _NAMED else ""
            named = ", ".join(servers[:_NAMED]) + more
            where = place(source, str(given.path[0]))
            yield Problem(where, f'"{given.path[-1]}" of {named}: {what}', fatal=False, code=NO_EFFECT_HERE)


def _asks_nothing(value: Any) -> bool:
    return value in (None, False, "", "off") or value == [] or value == {}


def foreign_settings(merged: Givens) -> Iterable[Problem]:
    """The problems of settings that have no effect here. Settings with the same advice share one problem."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key, given in merged.items():
        asks_nothing = given.value is True if key in _ON_BY_DEFAULT else _asks_nothing(given.value)
        if key in SETTINGS_NO_EFFECT and not asks_nothing:
            groups.setdefault((given.source, SETTINGS_NO_EFFECT[key]), []).append(key)
    for (_, advice), keys in groups.items():
        then = f": {advice}" if advice else ""
        given = merged[keys[0]]
        if len(keys) == 1:
            yield Problem(given.place(), f"has no effect here{then}", fatal=False)
        else:
            named = ", ".join(f'"{key}"' for key in keys)
            where = place(given.source, *given.path[:-1])
            yield Problem(where, f"{named} have no effect here{then}", fatal=False, code=NO_EFFECT_HERE)
