"""Environment references in configuration values: `${VAR}`, `${VAR:-default}`, `$env:VAR`, `{env:VAR}`, and
`~`.

The text in a file stays as it was written. A definition holds references and never their values, so no printed
configuration, log line or cache entry can hold a secret of the environment. References are expanded when a process is
started or a request is built (and for the hash), with the environment as an argument.

There is one pass, from left to right. The value of a variable is never read as a reference again, so a value cannot
smuggle in another reference. As in a shell, the default of `${VAR:-default}` is used for an unset and for an empty
variable; it contains no `}`.

`${session.NAME}` is a credential of the session for which a child is started, never a variable of the environment. It
may be used in `env`, `headers`, `url` and `args` of a server whose children are not shared. Where no session's
values are given, the reference stays as it was written. So what is printed, cached and hashed never depends on a
caller's credential. A child is not started before its session gives all of them (`session_variables`).

Values that are asked for at the start (`asked_values`) stay as they are. `!!` begins a text with one `!`.

However often a text refers to a long value, no definition grows beyond `EXPANDED` by it: no process could be started
with that, and no request sent.

An unset variable becomes the empty string and is reported. In a URL it is an error, and so is an empty one: the error
names all missing variables before any request is made, because half a URL leads to somebody else's endpoint. Who wants
nothing there writes `${VAR:-}`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from ..protocol.bounds import MIB
from ..protocol.errors import CALLER, UNSET_VARIABLE, ConfigError, Problem, place
from ..protocol.lazy_patterns import lazy_pattern
from .asked_values import BEARER, is_asked
from .model import SERVER_KEY_NAMES, Isolation, ServerDefinition, Settings
from .value_kinds import HEADER_NAME

_REFERENCE: Final = lazy_pattern(
    r"\$\{(?:(?:env:)?(?P<braced>\w+)|(?P<session>session\.\w+))(?::-(?P<default>[^}]*))?\}|\$env:(?P<dollar>\w+)|\{env:(?P<curly>\w+)\}"
)
# The same when no `}` follows: only the spelling that needs none. The empty groups exist because the code reads them.
_OPEN: Final = lazy_pattern(
    r"\$env:(?P<dollar>\w+)(?P<braced>(?!))?(?P<session>(?!))?(?P<default>(?!))?(?P<curly>(?!))?"
)
# Attributes that are the name of something.
PATHS: Final = ("command", "cwd", "socket", "env_file", "openapi", "uploads")
# Characters of what all references of one definition stand for; Linux starts no process with more.
EXPANDED: Final = 8 * MIB
SESSION: Final = "session."  # names of a session's values begin with this
_CONTROL: Final = lazy_pattern(r"[\x00-\x1f\x7f]")
_CONTROL_WORDS: Final = "a line break or another control character"


class Expansion(msgspec.Struct, frozen=True):
    """An expanded definition, and the variables that were missing (none of them fatal)."""

    definition: ServerDefinition
    problems: tuple[Problem, ...] = ()


def has_reference(text: str) -> bool:
    """Whether expanding `text` would look at the environment."""
    return next(_references(text), None) is not None


def without_references(text: str) -> str:
    """`text` without its references. A reference with a default stays, because the default may be a secret."""
    return _replaced(text, lambda match: "" if match["default"] is None else match[0])


def with_defaults(text: str, shown: Callable[[str], str]) -> str:
    """`text` with every default that is not empty replaced by `shown(default)`; the references stay."""

    def of(match: re.Match[str]) -> str:
        return (
            match[0].replace(f":-{match['default']}", f":-{shown(match['default'])}")
            if match["default"]
            else match[0]
        )

    return _replaced(text, of)


def referred_to(text: str) -> tuple[tuple[str, str], ...]:
    """The names `text` refers to, each with its default ("": none)."""
    return tuple((_name(match), match["default"] or "") for match in _references(text))


def missing_variables(text: str, environ: Mapping[str, str], *, may_be_empty: bool = True) -> tuple[str, ...]:
    """The variables `text` refers to that are not set and have no default, in order, each once. An empty variable
    counts as missing too, unless they `may_be_empty`."""
    if not _may_refer(text):
        return ()
    names = (_name(match) for match in _references(text) if match["default"] is None)
    return tuple(
        name
        for name in dict.fromkeys(names)
        if not name.startswith(SESSION)
        and (name not in environ if may_be_empty else not environ.get(name, "").strip())
    )


def session_variables(definition: ServerDefinition) -> frozenset[str]:
    """The names of the values that a session must give before a child of this server can be started."""
    return frozenset(name for name, default in _of_session(definition) if default is None)


def session_names(definition: ServerDefinition) -> frozenset[str]:
    """The names of all values that a session may give to a child of this server, those with a default too."""
    return frozenset(name for name, _ in _of_session(definition))


def _of_session(definition: ServerDefinition) -> Iterator[tuple[str, str | None]]:
    texts = [text for _, _, text in texts_of(definition)]
    if definition.is_as_caller:
        assert definition.oauth
        subject: str | None = definition.oauth.get("subjectToken")
        if subject is None:
            yield CALLER, None
        else:
            texts.append(subject)
    for text in (*texts, definition.url or ""):
        if SESSION in text:
            for match in _references(text):
                if match["session"] is not None:
                    yield match["session"].removeprefix(SESSION), match["default"]


def isolation_of(definition: ServerDefinition, settings: Settings) -> Isolation:
    """Which calls of this server share what reaches it: what its entry says, or the settings. An HTTP API into whose
    requests nothing of a session goes keeps nothing between two of them, so all share one unless its entry says
    otherwise."""
    if definition.isolation is not None or settings.isolation is None:
        return definition.isolation or Isolation.PERSISTENT
    if definition.is_api and not session_variables(definition):
        return Isolation.PERSISTENT
    return settings.isolation


def why_never_warm(definition: ServerDefinition) -> str | None:
    """Why no child of this server can be started before its session is known, and what to do about it. None: it can,
    where each session or call has one."""
    if definition.command is None:
        return "has an effect only on a program that is started here: remove it"
    if names := sorted(session_names(definition)):
        what = f"its children are started with ${{session.{names[0]}}}, so none can be before its session"
        return f"has no effect: {what}. Remove one of them"
    return None


def why_never_reset(definition: ServerDefinition) -> str | None:
    """Why no child of this server is reset and used again, and what to do about it. None: it can be, where each
    session or call has one."""
    if definition.warm:
        return why_never_warm(definition)
    return 'is for children that are started ahead: add "warm" with how many there are to be, or remove it'


def warm_of(definition: ServerDefinition, settings: Settings) -> int:
    """How many children of this server are started ahead."""
    if not definition.warm or why_never_warm(definition) is not None:
        return 0
    return 0 if isolation_of(definition, settings) is Isolation.PERSISTENT else definition.warm


def with_session(environ: Mapping[str, str], variables: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with a session's values added, under the names that references use."""
    return {**environ, **{f"{SESSION}{name}": value for name, value in variables.items()}}


def refers_to_session(text: str) -> bool:
    """Whether `text` refers to a value of a session."""
    return SESSION in text and any(match["session"] is not None for match in _references(text))


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`text` with every reference replaced. Unset variables become the empty string; a reference to a missing value of
    a session stays as written, and so do those that are left when it has grown by `EXPANDED`."""
    if not _may_refer(text):
        return text
    left = EXPANDED

    def of(match: re.Match[str]) -> str:
        nonlocal left
        unset = "" if match["session"] is None or match["session"] in environ else match[0]
        value = environ.get(_name(match)) or match["default"] or unset
        left -= len(value)
        return value if left >= 0 else match[0]

    return _replaced(text, of)


def _value(text: str, environ: Mapping[str, str]) -> str:
    """A value of `env`, `headers` or `args`. A value that is asked for stays as it is; any other text is expanded."""
    if is_asked(text):
        return text
    if "!" not in text[: len(BEARER) + 1]:
        return expand(text, environ)
    head = BEARER if text.startswith(BEARER) else ""
    bare = text.removeprefix(head)
    return head + expand(bare[1:] if bare.startswith("!!") else bare, environ)


def named_path(file: str, source: str, cwd: Path, environ: Mapping[str, str]) -> Path:
    """Where a file is that the configuration file `source` names: a relative path starts at its folder."""
    return cwd / Path(source).parent / expand_path(file, environ)


def expand_path(text: str, environ: Mapping[str, str]) -> str:
    """`text` expanded. A leading `~` or `~/` becomes the home directory, if the environment has one."""
    expanded = expand(text, environ)
    home = environ.get("HOME") or environ.get("USERPROFILE")
    if home and (expanded == "~" or expanded.startswith(("~/", "~\\"))):
        return home + expanded[1:]
    return expanded


def expand_definition(
    definition: ServerDefinition, environ: Mapping[str, str], *, is_strict: bool = False
) -> Expansion:
    """The definition with all references expanded, as its process is started or its endpoint is called. `is_strict`: a
    variable that is not set keeps the server from being used; else it is read as empty, with a warning.

    Raises `ConfigError` when the URL refers to variables that are not set, when the expanded URL is not an http(s)
    URL, and when a header cannot be sent; then it names the header and shows nothing of its value.
    """
    expanded = expanded_fields(definition, environ)
    problems = tuple(_missing_problems(definition, environ, is_strict))
    changed = {name: value for name, value in expanded.items() if value != getattr(definition, name)}
    if not changed:  # most definitions have no references, and there may be thousands
        return Expansion(definition, problems)
    return Expansion(replace(definition, **changed), problems)


def expanded_fields(definition: ServerDefinition, environ: Mapping[str, str]) -> dict[str, Any]:
    """Those fields of a definition that may refer to the environment, expanded. Raises as `expand_definition` does."""
    _check_size(definition, environ)
    return {
        "url": None if definition.url is None else _expand_url(definition, definition.url, environ),
        **{
            name: None if (path := getattr(definition, name)) is None else expand_path(path, environ)
            for name in PATHS
        },
        "http": _expand_http(definition.http, environ),
        "args": tuple(_value(arg, environ) for arg in definition.args),
        "env": _expand_values(definition.env, environ),
        "headers": _expand_headers(definition, environ),
        "request_headers_command": _expand_command(definition.request_headers_command, environ),
    }


def _check_size(definition: ServerDefinition, environ: Mapping[str, str]) -> None:
    """Raises `ConfigError` where the references stand for more than a definition may hold. Nothing is made of them
    before that is known."""
    left = EXPANDED
    for attribute, inside, text in (*texts_of(definition), ("url", (), definition.url or "")):
        if not _may_refer(text):
            continue
        left -= sum(len(environ.get(_name(match)) or "") for match in _references(text))
        if left < 0:
            what = f"its variables stand for more than {EXPANDED:,} characters: use fewer of them, or shorter values"
            raise ConfigError([Problem(place_in(definition, attribute, *inside), what)])


def _expand_http(said: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    """The tools with their own headers expanded, and the values of arguments that nobody gives: either may be a key."""
    if said is None:
        return None
    found = {name: dict(tool) for name, tool in said.items()}
    for (tool, *inside), text in texts_of_tools(said):
        inner: Any = found[tool]
        for key in inside[:-1]:
            inner[key] = inner = dict(inner[key])
        inner[inside[-1]] = expand(text, environ)
    return found


def texts_of_tools(said: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The texts in tools written by hand that may refer to the environment, each with its place."""
    for tool, one in said.items():
        for name, value in one.get("headers", {}).items():
            yield (tool, "headers", name), value
        for name, argument in one.get("params", {}).items():
            if isinstance(argument.get("default"), str):
                yield (tool, "params", name, "default"), argument["default"]


def _expand_command(said: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    if said is None:
        return None
    return {
        **said,
        "command": expand_path(said["command"], environ),
        "args": tuple(expand(arg, environ) for arg in said["args"]),
        "env": {name: expand(value, environ) for name, value in said["env"].items()},
    }


def is_url(text: str) -> bool:
    """Whether a document is fetched from there, and is no file."""
    return text.lower().startswith(("http://", "https://"))


def url_problem(url: str) -> str | None:
    """What is wrong with a fully expanded URL, in words that do not repeat it; None when it can be used."""
    if _CONTROL.search(url):
        return f"holds {_CONTROL_WORDS}"
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:  # its text quotes parts of the URL: passwords, for one
        return "is not a URL: write http://host/path or https://host/path"
    if parts.scheme not in ("http", "https"):
        return "must start with http:// or https://"
    return None if host else "names no host: write http://host/path or https://host/path"


def _may_refer(text: str) -> bool:
    """Whether `text` may have references. A cheap test, because nearly no text has any."""
    return "$" in text or "{env:" in text


def _references(text: str) -> Iterator[re.Match[str]]:
    """The references in `text`. A default is looked for only where a `}` can end it. Otherwise every `${A:-` without an
    end would search the rest of the text, which takes a second for 20 KB of them and a minute for 150 KB."""
    closed = text.rfind("}") + 1
    yield from _REFERENCE.finditer(text, 0, closed)
    yield from _OPEN.finditer(text, closed)


def _replaced(text: str, value: Callable[[re.Match[str]], str]) -> str:
    parts: list[str] = []
    done = 0
    for match in _references(text):
        parts += (text[done : match.start()], value(match))
        done = match.end()
    return "".join(parts) + text[done:]


def _name(match: re.Match[str]) -> str:
    return match["braced"] or match["session"] or match["dollar"] or match["curly"]


def _expand_values(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    return {key: _value(value, environ) for key, value in values.items()}


def _expand_headers(definition: ServerDefinition, environ: Mapping[str, str]) -> dict[str, str]:
    """The headers as they are sent: a line break at the end, which a token read from a file often has, is removed.
    Raises `ConfigError` for what no header may hold, before a library refuses it by quoting it."""
    if not definition.headers:
        return {}
    headers = {
        name: _encoded(name, value.strip())
        for name, value in _expand_values(definition.headers, environ).items()
    }
    if definition.url is not None:
        wrong = [
            Problem(place_in(definition, "headers", name), what)
            for name, value in headers.items()
            if (what := header_problem(name, value)) is not None
        ]
        if wrong:
            raise ConfigError(wrong)
    return headers


def _encoded(name: str, value: str) -> str:
    """`Basic USER:PASSWORD` as it is sent, in base64, which has no colon. So both may refer to variables."""
    scheme, _, login = value.partition(" ")
    if ":" not in login or name.lower() != "authorization" or scheme.lower() != "basic":
        return value
    return f"Basic {base64.b64encode(login.strip().encode(errors='replace')).decode()}"


def header_problem(name: str, value: str) -> str | None:
    if not HEADER_NAME.fullmatch(name):
        return "is not a name that a header may have: write letters, digits and hyphens"
    if _CONTROL.search(value.replace("\t", " ")):
        return f"its value holds {_CONTROL_WORDS}, which no header may: correct it, or the variable it comes from"
    if not value.isascii():
        return (
            "its value holds a character outside ASCII, which no header may: "
            "correct it, or the variable it comes from"
        )
    return None


def _expand_url(definition: ServerDefinition, url: str, environ: Mapping[str, str]) -> str:
    where = place_in(definition, "url")
    if missing := missing_variables(url, environ, may_be_empty=False):
        what = f"its URL needs {_not_set(missing)}"
        raise ConfigError([Problem(where, what, step=_how_to_set(missing))])
    expanded = expand(url, environ).strip()
    if (wrong := url_problem(expanded)) is not None:
        after = "after environment interpolation it " if has_reference(url) else ""
        raise ConfigError([Problem(where, f"{after}{wrong}")])
    return expanded


def _not_set(names: tuple[str, ...], *, is_empty: bool = False) -> str:
    """Which variables are not set, and whether they are read as empty then."""
    one = len(names) == 1
    which = f"variable {names[0]}, which is" if one else f"variables {' and '.join(names)}, which are"
    how = f", so {'it is' if one else 'they are'} empty here" if is_empty else ""
    return f"the {which} not set{how}"


def _how_to_set(names: tuple[str, ...]) -> str:
    which = "it" if len(names) == 1 else "them"
    return f"Set {which} where Greenroom is started, or give a default: ${{{names[0]}:-…}}"


def _missing_problems(
    definition: ServerDefinition, environ: Mapping[str, str], is_strict: bool
) -> Iterable[Problem]:
    for attribute, key, text in texts_of(definition):
        if missing := missing_variables(text, environ):
            where = place_in(definition, attribute, *key)
            what = f"it refers to {_not_set(missing, is_empty=not is_strict)}"
            problem = Problem(where, what, step=_how_to_set(missing))
            yield problem if is_strict else replace(problem, fatal=False, code=UNSET_VARIABLE)


def place_in(definition: ServerDefinition, attribute: str = "", *inside: str | int) -> str:
    """Where the entry of this server is, or a value in it: its file, and the keys as they are there."""
    sources, entry = definition.sources, ("mcpServers", definition.name)
    if attribute:
        return place(sources.get(attribute, ""), *entry, SERVER_KEY_NAMES[attribute], *inside)
    return place(sources.get("isolation") or next(iter(sources.values()), ""), *entry)


def texts_of(definition: ServerDefinition) -> Iterable[tuple[str, tuple[str | int, ...], str]]:
    """Every text that may refer to the environment, without the URL and without values that are asked for: its
    attribute, its place in there, and the text."""
    for attribute in PATHS:
        text: str | None = getattr(definition, attribute)
        if text is not None:
            yield attribute, (), text
    for inside, text in texts_of_tools(definition.http or {}):
        yield "http", inside, text
    if (said := definition.request_headers_command) is not None:
        yield "request_headers_command", ("command",), said["command"]
        for position, arg in enumerate(said["args"]):
            yield "request_headers_command", ("args", position), arg
        for key, value in said["env"].items():
            yield "request_headers_command", ("env", key), value
    yield from ((name, (key,), text) for name, key, text in _values_of(definition) if not is_asked(text))


def asked_of(definition: ServerDefinition) -> Iterable[tuple[str, str | int, str]]:
    """Every value that is asked for: its attribute, its place in it, and its text."""
    return (each for each in _values_of(definition) if is_asked(each[2]))


def _values_of(definition: ServerDefinition) -> Iterator[tuple[str, str | int, str]]:
    """The values that may be asked for: each attribute, the place in it, and the text."""
    yield from (("args", position, arg) for position, arg in enumerate(definition.args))
    for attribute, values in (("env", definition.env), ("headers", definition.headers)):
        yield from ((attribute, key, value) for key, value in values.items())


def without_asked(definition: ServerDefinition) -> ServerDefinition:
    """The definition without the headers whose values have to be asked for (by a command), for readers that do not ask.
    `Authorization` stays, because its presence decides how to log in."""
    kept = {
        name: value
        for name, value in definition.headers.items()
        if not is_asked(value) or name.lower() == "authorization"
    }
    return replace(definition, headers=kept)
