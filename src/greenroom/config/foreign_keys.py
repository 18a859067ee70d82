"""Keys that other programs write into the same file, translated into ours.

Many clients read the same server entry, and each has some keys of its own. Here one entry becomes a table of
*givens* under our key names. Each given remembers where it was written, so that a message about `timeoutMs`
says `timeoutMs`. This happens before files are merged, because the rules of merging know one name for each
setting.

A foreign key has one of three fates. It means one of our keys and is read as that key. Or it belongs to another
program and has no effect here. Or it is unknown, and the message suggests what it may have been
meant to be. A key without effect is kept unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeGuard

import msgspec
from msgspec.structs import replace

from ..protocol.errors import NO_EFFECT_HERE, Problem, place
from ..protocol.json_values import is_array, is_number, is_object
from .model import Isolation
from .references import expand, missing_variables
from .value_kinds import TEXT, BadValueError, is_whole, kind_of, unknown

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


class ForeignValue(msgspec.Struct, frozen=True):
    """One value from one file, and its place there: the source, then the path of keys as they were written. `fault`:
    why another program's word could not be translated; it goes with the value, so a stronger file's value mends it.
    `is_adapters`: the file is one of mcp-gateway's adapter, where a variable that is not set is an error."""

    value: Any
    source: str
    path: tuple[str | int, ...]
    fault: str = ""
    is_adapters: bool = False

    def place(self, *inside: str | int) -> str:
        return place(self.source, *self.path, *inside)

    def problem(self, what: str, *inside: str | int, fatal: bool = False) -> Problem:
        return Problem(self.place(*inside), what, fatal)

    def faulty(self, fault: str, *inside: str | int) -> ForeignValue:
        return replace(self, fault=fault, path=(*self.path, *inside))

    def number(self, unit: str, environ: Mapping[str, str], *, least: int = 0) -> ForeignValue:
        """A number of the adapter, which may be a text, and refer to a variable. It has a fault when it is none."""
        value = self.value
        if value is None:
            return self
        if isinstance(value, str):
            if missing := missing_variables(value, environ):
                return replace(self, fault=_not_set(missing))
            text = expand(value, environ).strip()
            value = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
        wanted = f"must be a number of {unit} from {least}"
        if not is_number(value):
            return replace(self, fault=f"{wanted}, is {kind_of(value)}")
        if not least <= value:  # NaN is none either
            return replace(self, fault=f"{wanted}, is {value if abs(value) < 1e9 else 'far out of range'}")
        return replace(self, value=value)


Givens = dict[str, ForeignValue]
Note = Callable[[Problem], object]


def is_remark(key: str) -> bool:
    """Whether a key is a remark for the reader by custom: `$schema`, `_comment`, `//`."""
    return key.startswith(("$", "_", "//"))


def givens(
    entry: Mapping[Any, Any],
    source: str,
    path: tuple[str | int, ...],
    note: Note,
    environ: Mapping[str, str] | None = None,
    *,
    is_adapters: bool = False,
) -> Givens:
    """One server entry under our key names. Warnings go to `note`; what cannot be translated stays, with its fault.
    `environ`: what the adapter's numbers and names of requests may refer to."""
    found: Givens = {}
    for key, value in entry.items():
        if not _is_key(key):
            note(_no_key(key, place(source, *path)))
        elif not is_remark(key):
            given = ForeignValue(value, source, (*path, key), is_adapters=is_adapters)
            _put(found, ALIASES.get(key, key), given, note)
    _read_codex(found)
    _read_api(found, note, environ or {})
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


# ---- Codex: seconds, and names of variables ----------------------------------------------------------------------
_CODEX_SECONDS: Final = {"startup_timeout_sec": "connectTimeoutMs", "tool_timeout_sec": "requestTimeoutMs"}

_PARALLEL: Final = frozenset({"supports_parallel_tool_calls", "supportsParallelToolCalls"})


def _read_codex(found: Givens) -> None:
    for key, ours in _CODEX_SECONDS.items():
        if key in found and found[key].value is not None:
            given = found.pop(key)
            is_wrong = not is_number(given.value)
            fault = f"must be a number of seconds, is {kind_of(given.value)}" if is_wrong else ""
            found.setdefault(ours, _in_milliseconds(replace(given, fault=fault)))
    for key in _PARALLEL & found.keys():
        given = found.pop(key)
        if given.value is False:  # true is how it is here
            found.setdefault("maxInFlight", replace(given, value=1))
        elif not (given.value is True or given.value is None):
            fault = f"must be true or false, is {kind_of(given.value)}"
            found.setdefault("maxInFlight", replace(given, fault=fault))
    for key, ours, reference in (("env_vars", "env", "${{{}}}"), ("env_http_headers", "headers", "$env:{}")):
        given = found.pop(key, None)
        if given is None or given.value is None:
            continue
        names: dict[Any, Any] | None = None
        if key == "env_vars" and is_array(given.value):
            names = {name if isinstance(name, str) else None: name for name in given.value}
        elif key == "env_http_headers" and is_object(given.value):
            names = {**given.value}
        if names is None or not all(isinstance(name, str) for pair in names.items() for name in pair):
            kind = "array" if key == "env_vars" else "object"
            found[key] = given.faulty(f"must be an {kind} of names of variables")
            continue
        _add_to(found, ours, given, {name: reference.format(variable) for name, variable in names.items()})


# ---- HTTP APIs, as mcp-gateway's adapter writes them ----------------------------------------------------------------
#
# There `type` says what a server is, and `spec`, `tools` and `auth` belong to it. What only changes answers, or names
# one operation of the document otherwise, has no effect here.

_ADAPTERS_OWN: Final[Mapping[str, str]] = {
    "endpoints": 'write "toolOverrides" for other names and descriptions, by the names of the tools',
    "responseTransforms": "answers are passed on as they are",
    "responseOverrides": "answers are passed on as they are",
}


def _read_api(found: Givens, note: Note, environ: Mapping[str, str]) -> None:
    said = found["type"].value if "type" in found else None
    is_theirs = (said == "openapi" and "spec" in found) or (said == "http" and "tools" in found)
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
    _read_policy(found, note, is_theirs=is_theirs)
    _read_discovery(found, note)
    _read_by_hand(found, note, environ if is_theirs else None)
    _read_defaults(found, note, environ)
    _read_api_login(found, note)
    for key, advice in _ADAPTERS_OWN.items():
        given = found.pop(key, None)
        if given is not None and not _asks_nothing(given.value):
            note(given.problem(f"has no effect here: {advice}"))


def _unread(given: ForeignValue, known: Iterable[str], note: Note, *inside: str | int) -> None:
    """Name the keys of an object that mean nothing here."""
    value: Any = given.value
    for key in inside:
        value = value[key]
    names = [*known]
    for key in value:
        if not _is_key(key) or (key not in names and not is_remark(key)):
            note(given.problem(unknown(str(key), names, "it is ignored"), *inside, str(key)))


_POLICIES: Final = ("warn", "fail", "ignore")
_A_POLICY: Final = '"warn", "fail" or "ignore"'


def _read_policy(found: Givens, note: Note, *, is_theirs: bool) -> None:
    """There `specHash` only warns, unless `specHashPolicy` says "fail"."""
    policy = found.get("specHashPolicy")
    if policy is not None and policy.value is not None and policy.value not in _POLICIES:
        found["specHashPolicy"] = policy.faulty(f"must be {_A_POLICY}, is {kind_of(policy.value)}")
        return
    found.pop("specHashPolicy", None)
    word = "warn" if policy is None or policy.value is None else policy.value
    if "specHash" not in found or word == "fail" or (policy is None and not is_theirs):
        return
    given = found.pop("specHash")
    if word == "warn" and given.value is not None:
        what = 'has no effect here with the policy "warn": write "specHashPolicy": "fail" to refuse another document'
        note((policy or given).problem(what))


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
        _unread(given, ("include", "exclude"), note)
    else:
        found["autoDiscover"] = given.faulty(f"must be true, false or an object, is {kind_of(given.value)}")


def _read_by_hand(found: Givens, note: Note, environ: Mapping[str, str] | None) -> None:
    """Take the adapter's own fields out of tools that are written by hand, and read `overrides` as such tools, each in
    the place of the operation that it matches. `environ`: what their names may refer to; None: to nothing."""
    if (overrides := found.pop("overrides", None)) is not None and overrides.value is not None:
        _read_overrides(found, overrides, note)
    given = found.get("http")
    if given is None or not is_object(given.value) or given.fault:
        return
    tools: dict[Any, Any] = {}
    for name, said in given.value.items():
        _read_response(given, name, said, note)
        tools[name] = _ours(said)
        if environ is not None and (missing := _expand_names(tools[name], environ)):
            found["http"] = given.faulty(_not_set(missing), str(name))
            return
    found["http"] = replace(given, value=tools)


def _read_overrides(found: Givens, overrides: ForeignValue, note: Note) -> None:
    if not is_object(overrides.value):
        found["overrides"] = overrides.faulty(f"must be an object, is {kind_of(overrides.value)}")
        return
    _unread(overrides, ("tools",), note)
    tools: Any = overrides.value.get("tools")
    if tools is not None and not is_object(tools):
        found["overrides"] = overrides.faulty(f"must be an object of tools, is {kind_of(tools)}", "tools")
        return
    by_hand: dict[str, Any] = {}
    for name, said in (tools or {}).items():
        if fault := _fault_of_override(said):
            found["overrides"] = overrides.faulty(fault, "tools", str(name))
            return
        _unread(overrides, ("match", "request", "description"), note, "tools", name)
        described = {"description": said["description"]} if said.get("description") is not None else {}
        by_hand[name] = {**said["request"], **described}
        before = found.get("excludeOperations", replace(overrides, value=[]))
        others: list[Any] = list(before.value) if is_array(before.value) else []
        found["excludeOperations"] = replace(before, value=[*others, _matched(said["match"])])
    if by_hand:
        before = found.get("http", replace(overrides, value={}))
        if is_object(before.value):
            found["http"] = replace(before, value={**before.value, **by_hand})


def _fault_of_override(said: Any) -> str:
    if not is_object(said) or not is_object(said.get("request")):
        return (
            'must be an object like {"match": {"operationId": "…"}, "request": {"method": "…", "path": "…"}}'
        )
    if not is_object(said.get("match")) or _matched(said["match"]) is None:
        return 'must say which operation it replaces: {"match": {"operationId": "…"}}, or a "method" and a "path"'
    return ""


def _read_response(given: ForeignValue, tool: Any, said: Any, note: Note) -> None:
    """Name what of `response` has no effect: answers are passed on as they are."""
    if not is_object(said) or said.get("response") is None:
        return
    response: Any = said["response"]
    where = (str(tool), "response")
    if not is_object(response):
        note(given.problem(f"must be an object, is {kind_of(response)}; it is ignored", *where))
        return
    for key, value in response.items():
        if key == "transforms" and not _asks_nothing(value):
            note(given.problem("has no effect here: answers are passed on as they are", *where, key))
        elif key == "mode" and value not in ("json", None):
            what = "has no effect here: an answer is read by the type that it says it has"
            note(given.problem(what, *where, key))
        elif key not in ("transforms", "mode", "outputSchema") and not is_remark(str(key)):
            known = ("mode", "outputSchema", "transforms")
            note(given.problem(unknown(str(key), known, "it is ignored"), *where, str(key)))


def _expand_names(tool: Any, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Expand what the adapter expands in a request and we do not: its method, path and description, and the names on
    the wire. Returns the variables that are not set."""
    if not is_object(tool):
        return ()
    texts: list[tuple[Any, str]] = [(tool, key) for key in ("method", "path", "description")]
    params: Any = tool.get("params")
    texts += [
        (one, "name") for one in (params.values() if is_object(params) else ()) if isinstance(one, dict)
    ]
    missing: list[str] = []
    for holder, key in texts:
        if isinstance(text := holder.get(key), str):
            missing += missing_variables(text, environ)
            holder[key] = expand(text, environ)
    return tuple(dict.fromkeys(missing))


def _not_set(names: Iterable[str]) -> str:
    return f"refers to what is not set: {', '.join(names)}. Set it, or write the value itself"


def _ours(said: Any) -> Any:
    """A tool as it is written here: `response` is its `outputSchema`, and empty values are always allowed."""
    if not is_object(said):
        return said
    ours: dict[Any, Any] = {**said}
    if is_object(response := ours.get("response")) or response is None:
        ours.pop("response", None)
        if response is not None and response.get("outputSchema") is not None:
            ours.setdefault("outputSchema", response["outputSchema"])
    else:
        del ours["response"]
    if is_object(params := ours.get("params")):
        ours["params"] = {
            name: {key: value for key, value in one.items() if key != "allowEmptyValue" and value is not None}
            if is_object(one)
            else one
            for name, one in params.items()
        }
    return {key: value for key, value in ours.items() if value is not None}


def _matched(match: Mapping[Any, Any]) -> str | None:
    if isinstance(match.get("operationId"), str):
        return match["operationId"]
    if isinstance(match.get("path"), str):
        return f"{str(match.get('method') or '*').upper()} {match['path']}"
    return None


def _read_defaults(found: Givens, note: Note, environ: Mapping[str, str]) -> None:
    """`defaults`: seconds for a request, and headers."""
    given = found.pop("defaults", None)
    if given is None or given.value is None:
        return
    if not is_object(given.value):
        found["defaults"] = given.faulty(f"must be an object, is {kind_of(given.value)}")
        return
    for key, value in given.value.items():
        inner = replace(given, value=value, path=(*given.path, str(key)))
        if value is None or is_remark(str(key)):
            continue
        if key == "timeout":
            _read_timeout(found, inner, note, environ)
        elif key == "headers" and is_object(value):
            own: Any = found["headers"].value if "headers" in found else None
            found["headers"] = replace(inner, value={**value, **(own if is_object(own) else {})})
        elif key == "headers":
            found["defaults"] = inner.faulty(f"must be an object of strings, is {kind_of(value)}")
        elif key == "arrayStyle":
            note(inner.problem('has no effect here: write "style" and "explode" for each argument'))
        else:
            note(inner.problem(unknown(str(key), ("timeout", "headers", "arrayStyle"), "it is ignored")))


def _read_timeout(found: Givens, given: ForeignValue, note: Note, environ: Mapping[str, str]) -> None:
    read = given.number("seconds", environ)
    if read.value == 0 and not read.fault:
        what = 'has no effect here: a call always has an end; write "requestTimeoutMs" for a late one'
        note(given.problem(what))
    else:
        found.setdefault("requestTimeoutMs", _in_milliseconds(read))


_LOGINS: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "bearer": ("token",),
    "header": ("name", "value"),
    "basic": ("username", "password"),
    "query": ("name", "value"),
}


def _read_api_login(found: Givens, note: Note) -> None:
    """`auth` with a `type`: a token, a header, a user with a password, or a part of the query."""
    given = found.get("auth")
    if given is None or not is_object(given.value) or "type" not in given.value:
        return
    said: Mapping[Any, Any] = given.value
    kind = said["type"]
    parts = _LOGINS.get(kind) if isinstance(kind, str) else None
    if parts is None:
        found["auth"] = given.faulty(f"is none of {', '.join(_LOGINS)}", "type")
        return
    for part in parts:
        if not isinstance(said.get(part), str):
            is_missing = said.get(part) is None
            what = "is missing: add it" if is_missing else f"must be a string, is {kind_of(said[part])}"
            found["auth"] = given.faulty(what, part)
            return
    _unread(given, ("type", *parts), note)
    del found["auth"]
    match kind:
        case "bearer":
            found.setdefault("bearerToken", replace(given, value=said["token"], path=(*given.path, "token")))
        case "header":
            _add_to(found, "headers", given, {said["name"]: said["value"]})
        case "basic":  # encoded when it is sent (`references`), so that it may refer to variables
            login = f"Basic {said['username']}:{said['password']}"
            _add_to(found, "headers", given, {"Authorization": login})
        case "query" if "url" in found and isinstance(found["url"].value, str):
            url = found["url"]
            mark = "&" if "?" in url.value else "?"
            found["url"] = replace(url, value=f"{url.value}{mark}{said['name']}={said['value']}")
        case _:
            pass


def _add_to(found: Givens, key: str, given: ForeignValue, more: Mapping[str, Any]) -> None:
    before = found.get(key, replace(given, value={}))
    if before.value is None or is_object(before.value):  # what is no object is told where it is read
        found[key] = replace(before, value={**more, **(before.value or {})})


def _is_key(key: Any) -> TypeGuard[str]:
    return isinstance(key, str) and is_whole(key)


def _no_key(key: Any, where: str) -> Problem:
    kind = "half a character" if isinstance(key, str) else type(key).__name__
    return Problem(where, f"has a key that is not a string ({kind}); it is ignored", fatal=False)


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


def _put(found: Givens, name: str, given: ForeignValue, note: Note) -> None:
    if name in found:
        note(given.problem(f'says the same as "{found[name].path[-1]}", which is used; remove one of them'))
    else:
        found[name] = given


def _read_type(found: Givens, note: Note) -> None:
    """Read `type` and similar keys. They only hint at the transport, which `command` or `url` decide; only `sse` says
    more than these."""
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
        return 'is not a transport we know; it is ignored, "command", "url" or "socket" decide'
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
    from ..protocol.jsonrpc.terms import MODERN_VERSIONS  # few files need it, and it takes long to import

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


def _open_lifecycle(found: Givens, given: ForeignValue, note: Note) -> ForeignValue | None:
    rest: dict[Any, Any] = {**given.value}
    mode, idle = rest.pop("mode", None), rest.pop("idleTimeoutMs", None)
    for key in rest:
        note(given.problem("unknown key; it is ignored, mode and idleTimeoutMs are known", str(key)))
    if is_number(idle):
        minutes = replace(given, value=_minutes(idle), path=(*given.path, "idleTimeoutMs"))
        found.setdefault("idleTimeout", minutes)
    elif idle is not None:
        what = f"must be a number of milliseconds, is {kind_of(idle)}; the default is used"
        note(given.problem(what, "idleTimeoutMs"))
    del found["lifecycle"]
    if mode is None:
        return None
    if mode == "keep-alive" and is_number(idle) and idle > 0:
        mode = "lazy"  # MetaMCP stops it after this time, and starts it again when it is called
    found["lifecycle"] = replace(given, value=mode, path=(*given.path, "mode"))
    return found["lifecycle"]


def _minutes(milliseconds: float) -> float:
    try:
        return milliseconds / 60_000
    except OverflowError:  # an integer beyond every float
        return float("inf")


# ---- the adapter's file ------------------------------------------------------------------------------------
#
# Its numbers may be texts, and texts may refer to variables, of which none may be unset. No mistake in it keeps its
# servers from being served: what cannot be read is told, and the default is used.
_ADAPTER_SECONDS: Final = {"callTimeout": "requestTimeoutMs", "startupTimeout": "connectTimeoutMs"}
_ADAPTER_DOOR: Final = {"bind": "http.listen", "mcpBearerToken": "http.tokens"}
_ADAPTER_TYPES: Final = ("stdio", "openapi", "http")


def is_adapters(raw: Any, source: str) -> bool:
    """Whether a file is one of mcp-gateway's adapter: by its own block, or by servers that only it has."""
    if not is_object(raw):
        return False
    if "adapter" in raw:
        return True
    servers = raw.get("servers")
    if not is_object(servers) or "mcpServers" in raw or "inputs" in raw:
        return False
    entries: list[Any] = [each for each in servers.values() if is_object(each)]
    types = [each.get("type") for each in entries]
    has_api = any("baseUrl" in each or "spec" in each for each in entries)
    return any(each in _ADAPTER_TYPES for each in types) and (
        has_api or source.lower().endswith((".yaml", ".yml"))
    )


def adapter_settings(
    adapter: Mapping[Any, Any], source: str, note: Note, environ: Mapping[str, str]
) -> Givens:
    """The `adapter` block of mcp-gateway's adapter as our settings."""
    found: Givens = {}
    for key, value in adapter.items():
        given = ForeignValue(value, source, ("adapter", str(key)), is_adapters=True)
        if value is None or is_remark(str(key)):
            continue
        if key in _ADAPTER_SECONDS:
            found[_ADAPTER_SECONDS[key]] = _in_milliseconds(given.number("seconds", environ, least=1))
        elif key == "stdioLifecycle":
            found["isolation"] = given
        elif key == "transforms" and is_object(value):
            _read_transforms(found, given, note)
        elif key == "restartPolicy":
            found["restartPolicy"] = given
        elif key == "restartBackoff":
            found |= _backoff(given, note, environ)
        elif key in _ADAPTER_DOOR:
            _read_door(found, given, note, environ)
        else:
            note(given.problem("has no effect here"))
    found.setdefault("isolation", ForeignValue("per_session", source, ("adapter",), is_adapters=True))
    return found


def _backoff(given: ForeignValue, note: Note, environ: Mapping[str, str]) -> Givens:
    if not is_object(given.value):
        return {"restartBackoff": given}
    found: Givens = {}
    for key, value in given.value.items():
        inner = replace(given, value=value, path=(*given.path, str(key)))
        if key in ("minMs", "maxMs"):
            found[f"restartBackoff.{key}"] = inner.number("milliseconds", environ)
        elif not is_remark(str(key)):
            note(inner.problem(unknown(str(key), ("minMs", "maxMs"), "it is ignored")))
    return found


def _read_door(found: Givens, given: ForeignValue, note: Note, environ: Mapping[str, str]) -> None:
    """`bind` and `mcpBearerToken` as parts of our setting `http`. An empty token means none there. It is refused here,
    for a file that has the key wants one."""
    part = _ADAPTER_DOOR[str(given.path[-1])]
    try:
        said = TEXT.read(given.value).strip()
    except BadValueError as wrong:
        note(given.problem(wrong.what, fatal=True))
        return
    if part == "http.tokens":
        found[part] = replace(given, value={"adapter": said})
    elif missing := missing_variables(said, environ, may_be_empty=False):
        found[part] = replace(given, fault=_not_set(missing))
    else:
        found[part] = replace(given, value=expand(said, environ))


def _read_transforms(found: Givens, given: ForeignValue, note: Note) -> None:
    """`transforms` as our setting `toolOverrides`, which is for tools of every server as well."""
    for key, value in given.value.items():
        inner = replace(given, value=value, path=(*given.path, str(key)))
        if key != "toolOverrides":
            if not is_remark(str(key)):
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


def _in_milliseconds(seconds: ForeignValue) -> ForeignValue:
    if seconds.fault:
        return seconds
    try:
        return replace(seconds, value=seconds.value * 1000.0)
    except OverflowError:  # an integer beyond every float
        return replace(seconds, value=float("inf"))


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
        what = f"has no effect here; it is kept unchanged{advice}"
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
