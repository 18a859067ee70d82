"""Find the places in a configuration value that may hold a secret, and hide them.

A reference to the environment is shown: people want to check it, and it reveals nothing. Its default is hidden, for
that may be the secret. Arguments are read as the program will read them: `--token x`, `--api-key=x`, `-kx`, a header,
a URL, or a shell line with any of these in it. A `Hider` remembers what it has hidden.

An address needs no `http://` to have a query: all that follows `?` is hidden where a host or a path stands before it,
as long as it is no pattern for names of files. In a line, `&` ends a word, unless it stands in such a query and a
further `name=value` follows. (A bare word after it may be what a shell runs, which people have to see.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec.structs import replace

from ..protocol.errors import ConfigError
from ..protocol.json_values import is_array, is_object
from ..protocol.lazy_patterns import lazy_pattern
from .asked_values import is_asked
from .credentials import BEGINNINGS, SCHEMES, SECRET_WORD, SecretValue
from .keys import Key, grouped
from .model import SERVER_KEY_NAMES, SERVER_KEYS, SETTING_KEYS, Config, ServerDefinition, Settings
from .references import (
    SESSION,
    expand,
    expand_definition,
    is_url,
    referred_to,
    texts_of,
    texts_of_tools,
    with_defaults,
    without_references,
)
from .scrubbing import REDACTED, without_logins

# ---- The effective configuration without secrets, each value with its source ----------------------------------------
#
# The place of a value decides whether it may be secret, not its looks, and in doubt it is secret: all values of
# `env` and `headers`, the user and the query of a URL, everything under unknown keys. Looks count only where hiding
# everything would hide the configuration itself: in arguments and in the path of a URL (`Hider`).
#
# The values hidden here and the values of references may be secrets of a server (`secrets_of`). Those of them that are
# known to be credentials (`credentials`) are cut out of every text about the server.


def redacted(config: Config, *, changed: bool = False) -> dict[str, Any]:
    """The effective configuration as plain data, in the shape and units of a file, together with its sources.

    Keys: `files` (strongest first), `unread` and `untrusted` (those of them that cannot be read, and those that are not
    obeyed), `mcpServers`, `settings`, `sources` (the same paths, holding file names or "default"), `broken` (name →
    reason), `problems`. `changed`: of the settings only those that a file gives.
    """
    sources = {key.name: config.setting_sources.get(key.attribute, "default") for key in SETTING_KEYS}
    if changed:
        sources = {name: file for name, file in sources.items() if file != "default"}
    return {
        "files": list(config.files),
        "unread": list(config.unread),
        "untrusted": list(config.untrusted),
        "mcpServers": {name: redacted_server(server) for name, server in config.servers.items()},
        "settings": grouped(
            (key.name, _setting(key, config.settings)) for key in SETTING_KEYS if key.name in sources
        ),
        "sources": {
            "mcpServers": {name: _server_sources(server) for name, server in config.servers.items()},
            "settings": sources,
        },
        "broken": {name: str(problem) for name, problem in config.broken.items()},
        "problems": [str(problem) for problem in config.problems],
    }


def redacted_server(definition: ServerDefinition) -> dict[str, Any]:
    """One server in the shape of a file's entry, with only the fields that were given and with secrets hidden."""
    return Hider().definition(definition)


def secrets_of(definition: ServerDefinition, environ: Mapping[str, str]) -> list[SecretValue]:
    """The values that may be secrets of this server: everything hidden in its definition, as written and as expanded,
    what stands in its variables and headers as in an argument, and the values of its references."""
    hider = Hider()
    hider.definition(definition)
    hider.inside(definition)
    oauth = [each.value for each in _of_login(definition, {})]
    for text in (*(text for _, _, text in texts_of(definition)), definition.url or "", *oauth):
        hider.found += (_referred(name, environ.get(name) or default) for name, default in referred_to(text))
    hider.found += _under("", definition.extra)
    hider.found += _of_command(definition)
    hider.found += _of_login(definition, environ)
    hider.found += _inherited(definition, environ)
    try:
        expanded = expand_definition(definition, environ).definition
        hider.definition(expanded)
        hider.inside(expanded)
        hider.found += _of_command(expanded)
    except ConfigError:  # it cannot be reached, but messages may still quote parts of it
        hider.url(expand(definition.url or "", environ))
    return hider.found


_TOKENS: Final = ("http_tokens", "http_owner_tokens")


def files_with_secrets(config: Config) -> set[str]:
    """The files in which credentials are written. A reference is none, nor is a command that prints one."""
    found: set[str] = set()
    for attribute in _TOKENS:
        said: Mapping[str, str] = getattr(config.settings, attribute)
        if any(
            _is_written(SecretValue(name, expand(text, _ShortValues()), known=True))
            for name, text in said.items()
        ):
            found.add(config.setting_sources.get(attribute, ""))
    for server in config.servers.values():
        for key, source in server.sources.items():
            given: dict[str, Any] = {"extra": {key: server.extra[key]}} if key in server.extra else {}
            part = ServerDefinition(server.name, **(given or {key: getattr(server, key)}))
            if any(map(_is_written, secrets_of(part, _ShortValues()))):
                found.add(source)
    return found


def _is_written(hidden: SecretValue) -> bool:
    written = replace(hidden, value=expand(hidden.value, {}))
    return not is_asked(hidden.value) and bool(written.credentials())


def _referred(name: str, value: str) -> SecretValue:
    """The secret that a reference stands for. A session's value is always a credential, whatever its name is."""
    return SecretValue(name.removeprefix(SESSION), value, known=name.startswith(SESSION))


def _inherited(definition: ServerDefinition, environ: Mapping[str, str]) -> Iterator[SecretValue]:
    """The variables of our environment that the server gets because its entry says so."""
    wanted = ("*",) if definition.inherit_env is True else definition.inherit_env or ()
    for name, value in environ.items():
        if any(fnmatchcase(name, pattern) for pattern in wanted):
            yield SecretValue(name, value)


def _of_command(definition: ServerDefinition) -> Iterator[SecretValue]:
    """The secrets in the environment and the arguments of the command that gives headers."""
    said = definition.request_headers_command or {"env": {}, "args": ()}
    yield from (SecretValue(name, value) for name, value in said["env"].items())
    hider = Hider()
    hider.arguments(said["args"])
    yield from hider.found


def _of_login(definition: ServerDefinition, environ: Mapping[str, str]) -> Iterator[SecretValue]:
    """The secrets in `oauth`: the client's, and what is added to the request for a login."""
    given = definition.oauth or {}
    for name in ("clientSecret", "identityClientSecret", "subjectToken", "authorizationParams"):
        for hidden in _under(name, given.get(name)):
            yield hidden
            if environ:
                yield SecretValue(hidden.name, expand(hidden.value, environ))


def _under(name: str, value: Any) -> Iterator[SecretValue]:
    """Every string in `value`, whatever its shape; each may be a secret. `name`: the key or index where the value
    is."""
    if isinstance(value, str):
        yield SecretValue(name, value)
    pairs = value.items() if is_object(value) else ((name, each) for each in value) if is_array(value) else ()
    for key, each in pairs:
        yield from _under(str(key), each)


def hides(args: Any) -> bool:
    """Whether arguments, as a file gives them, hold something that may be secret."""
    given = cast("list[Any]", args) if isinstance(args, list) else []
    said = [arg for arg in given if isinstance(arg, str)]
    hider = Hider()
    hider.arguments([expand(arg, _OwnNames()) for arg in said])
    names = (name for arg in said for name, _ in referred_to(arg))
    if len(said) < len(given) or any(is_asked(arg) for arg in said):  # of the keyring, or of a command
        return True
    return bool(hider.found) or any(SECRET_WORD.search(name) for name in names)


class _ShortValues(dict[str, str]):
    """An environment that has every variable, with a value that is too short for a credential."""

    def get(self, key: str, default: Any = None) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "x"


class _OwnNames(dict[str, str]):
    """An environment that has every variable."""

    def get(self, key: str, default: Any = None) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return key


def _is_said(key: Key, definition: ServerDefinition) -> bool:
    default = ServerDefinition.__fields__[key.attribute].default
    value = getattr(definition, key.attribute)
    return key.attribute in definition.sources or (value != default and value != {})


def _setting(key: Key, settings: Settings) -> Any:
    if key.attribute in _TOKENS:
        return dict.fromkeys(getattr(settings, key.attribute), REDACTED)
    return key.in_file_units(getattr(settings, key.attribute))


def _server_sources(definition: ServerDefinition) -> dict[str, str]:
    return {SERVER_KEY_NAMES.get(said, said): source for said, source in definition.sources.items()}


BY_FORM: Final = "text"  # what is called this has been hidden for its form alone
_SHAPED: Final = lazy_pattern(r"(?=[^/\s]*\d)(?=[^/\s]*[A-Za-z])[A-Za-z0-9_\-.+=~]{16,}")
_KNOWN: Final = lazy_pattern(
    rf"\b(?:{BEGINNINGS})[\w\-.]{{4,}}"
    r"|(?<![\w/.@+=~-])(?:(?=[\w+=~-]*\d)(?=[\w+=~-]*[a-z])(?=[\w+=~-]*[A-Z])[\w+=~-]{20,}|[0-9a-fA-F-]{32,})(?![\w/.@])"
)
_WORDS_TOO: Final = ("token", "apikey")  # of these schemes: what may as well be any word of a line
_SHORT: Final = lazy_pattern(r"-([A-Za-z])(?==?(.{4,}))=?")
_TAKES_SECRET: Final = frozenset("kKpPtTuU")  # of short options: key, password, token, user:password
_PLAIN: Final = lazy_pattern(r"[a-z][a-z-]*|[\d:.,]+|[./~@].*")
_TAKES_LOGIN: Final = frozenset({"-u", "-U", "--user", "--proxy-user"})
# What stands before the query of an address.
_LEADS: Final = lazy_pattern(r"[/.]|:\d|^localhost$")
_LEADS_NOWHERE: Final = lazy_pattern(r"[*\\^=]|://")
_HOST: Final = lazy_pattern(
    r"(?:[^/@]*@)?(?:(?:localhost|(?:[\w-]+\.)+[A-Za-z][\w-]+)(?::\d+)?/.*|[^/]+:\d+(?:/.*)?)"
)
_PAIRS: Final = lazy_pattern(r"[\w%$][^=]*=.*", re.DOTALL)
# A query without `=`, and not the end of a file's name.
_BARE: Final = lazy_pattern(r"(?!.*\.[A-Za-z]\w{0,4}\Z)[\w%][^*?\\^\[\]{}]*")
_LONG: Final = 6  # characters of such a query that is one even if no host stands before it
_BETWEEN: Final = lazy_pattern(r"(\s+|['\"`;|&()<>]+)")  # the words of a line for a shell


class Hider(msgspec.Struct):
    """Hides secrets in values. `found`: what it has hidden so far."""

    found: list[SecretValue] = msgspec.field(default_factory=list[SecretValue])

    def value(self, text: str, name: str = "") -> str:
        """Hide a value, unless it consists of references only (with an authentication scheme in front, perhaps)."""
        rest = without_references(text)
        if rest != text and rest.strip().lower() in ("", *SCHEMES):
            return text
        return self._hide(text, name)

    def text(self, text: str) -> str:
        """Hide the secrets in something like a path: defaults, and everything in the form of a key."""
        return _KNOWN.sub(lambda match: self._hide(match[0], BY_FORM), self.without_defaults(text))

    def url(self, url: str) -> str:
        """A URL without its user and password, query values, fragment, and anything that looks like a key."""
        url = self.without_defaults(url)
        try:
            parts = urlsplit(url)
        except ValueError:
            return self._hide(url, "url")
        path = "/".join(self._path_part(part) for part in parts.path.split("/"))
        shown = f"{parts.scheme}://{self._host(parts)}{path}" if parts.scheme else path
        query = f"?{self._query(parts.query)}" if parts.query else ""
        return shown + query + (f"#{self._hide(parts.fragment, 'fragment')}" if parts.fragment else "")

    def arguments(self, args: Sequence[str]) -> list[str]:
        shown: list[str] = []
        before = ""
        for arg in args:
            shown.append(self._after(before, arg))
            before = arg
        return shown

    def _after(self, before: str, arg: str) -> str:
        """An argument without its secrets. `before`: the argument before it, which may be an option whose value this
        is."""
        if not arg.startswith("-"):
            if before.startswith("-") and "=" not in before and SECRET_WORD.search(before):
                return self.value(arg, before)
            if before in _TAKES_LOGIN and ":" in arg:
                return self.value(arg, "login")
        return self._argument(arg)

    def _argument(self, arg: str) -> str:
        arg = self.without_defaults(arg)
        head, colon, rest = arg.partition(":")
        if colon and not rest.startswith("//") and not _BETWEEN.search(head) and SECRET_WORD.search(head):
            return f"{head}: {self.value(rest, head)}"  # a header
        return self.line(arg) if len(_words(arg)) > 1 else self._word(arg)

    def _word(self, word: str) -> str:
        if not word.startswith("-") and _is_address(word):
            return self._address(word)
        name, equals, value = word.partition("=")
        if equals and "://" not in name:
            if SECRET_WORD.search(name):
                return f"{name}={self.value(value, name)}"
            if "=" in value or "://" in value or _is_address(value):  # --env=TOKEN=x, --proxy=http://…
                return f"{name}={self._word(value)}"
        if "://" in word:
            return self.url(word)
        short = _SHORT.match(word)
        if short is not None and short[1] in _TAKES_SECRET and not _PLAIN.fullmatch(short[2]):
            return f"{short[0]}{self.value(short[2], 'key')}"
        return without_logins(self.text(word))

    def _address(self, word: str) -> str:
        """An address without a scheme, but with a query."""
        head, _, query = word.partition("?")
        query, _, fragment = query.partition("#")
        host, *path = head.split("/")
        place = without_logins(self.text("/".join((host, *(self._path_part(part) for part in path)))))
        return f"{place}?{self._query(query)}" + (f"#{self._hide(fragment, 'fragment')}" if fragment else "")

    def line(self, text: str) -> str:
        """Hide the secrets in a line for a shell, or in any text of several words."""
        shown: list[str] = []
        before, expects = "", ""
        for place, part in enumerate(_words(text)):
            if place % 2 or not part:
                shown.append(part)
                continue
            if expects and part.lower() not in SCHEMES:
                shown.append(self.value(part, expects) if not part.startswith("-") else self._word(part))
                expects = ""
            elif (part.lower() in SCHEMES and part.lower() not in _WORDS_TOO) or (
                part[-1] in ":=" and SECRET_WORD.search(part)
            ):
                shown.append(part)
                expects = part
            elif (
                not expects
                and ":" in part
                and "://" not in part
                and SECRET_WORD.search(part.partition(":")[0])
            ):
                shown.append(self._argument(part))
            else:
                shown.append(part if expects else self._after(before, part))
            before = part
        return "".join(shown)

    def without_defaults(self, text: str) -> str:
        """A text with its references, but without their defaults."""
        return with_defaults(text, lambda default: self._hide(default, "default"))

    def _host(self, parts: SplitResult) -> str:
        userinfo, at, host = parts.netloc.rpartition("@")
        return f"{self.value(userinfo, 'login')}@{host}" if at else host

    def _path_part(self, part: str) -> str:
        return self._hide(part, "part of a path") if _SHAPED.fullmatch(part) else part

    def _query(self, query: str) -> str:
        pairs = (pair.partition("=") for pair in query.split("&"))
        return "&".join(
            f"{name}={self.value(value, name)}" if equals else self._hide(name, "query")
            for name, equals, value in pairs
        )

    def _hide(self, text: str, name: str) -> str:
        if text != REDACTED:
            self.found.append(SecretValue(name, text))
        return REDACTED

    def inside(self, definition: ServerDefinition) -> None:
        """The secrets inside values that are addresses or arguments, found by their form and their name."""
        inside = Hider()
        for text in (*definition.env.values(), *definition.headers.values()):
            inside.line(text)
        self.found += (each for each in inside.found if each.name != BY_FORM)

    def definition(self, definition: ServerDefinition) -> dict[str, Any]:
        """A server in the shape of a file's entry, with only the fields that were given."""
        shown = {key.name: self._key(key, definition) for key in SERVER_KEYS if _is_said(key, definition)}
        return shown | dict.fromkeys(definition.extra, REDACTED)

    def _key(self, key: Key, definition: ServerDefinition) -> Any:
        value = getattr(definition, key.attribute)
        match key.attribute:
            case "env" | "headers":
                return {name: self.value(text, name) for name, text in value.items()}
            case "oauth":
                return value if isinstance(value, bool) else REDACTED
            case "request_headers_command":
                return REDACTED
            case "url":
                return self.url(value)
            case "openapi":
                return self.url(value) if is_url(value) else self.text(value)
            case "http":
                return self._tools(value)
            case "args":
                return self.arguments(value)
            case "command" | "cwd" | "socket" | "env_file" | "uploads":
                return self.text(value)
            case _:
                return key.in_file_units(value)

    def _tools(self, tools: Mapping[str, Any]) -> dict[str, Any]:
        """Tools written by hand. Their own headers may be keys, and so may the values of arguments that nobody gives,
        and what their paths have in the query."""
        found = {name: dict(tool) for name, tool in tools.items()}
        for (tool, *place), text in texts_of_tools(tools):
            inner: Any = found[tool]
            for key in place[:-1]:
                inner[key] = inner = dict(inner[key])
            inner[place[-1]] = self.value(text, place[1])
        return {name: {**tool, "path": self.url(tool["path"])} for name, tool in found.items()}


def _words(line: str) -> list[str]:
    """The words of a line, and between each two what separates them."""
    parts = _BETWEEN.split(line)
    words = [parts[:1]]
    has_query: bool | None = None  # the last word; None: nobody has looked
    for between, word in zip(parts[1::2], parts[2::2], strict=True):
        if between == "&" and "=" in word:
            has_query = _has_query(words[-1][0]) if has_query is None else has_query
            if has_query:
                words[-1] += between, word
                continue
        words += [between], [word]
        has_query = None
    return ["".join(each) for each in words]


def _has_query(word: str) -> bool:
    return "?" in word and ("://" in word or _is_address(word) or _is_address(word.partition("=")[2]))


def _is_address(word: str) -> bool:
    """Whether the word is an address that has a query but no scheme."""
    head, _, query = word.partition("?")
    if not query or _LEADS_NOWHERE.search(head) or not _LEADS.search(head):
        return False
    if "=" in query:
        return _PAIRS.fullmatch(query) is not None
    is_long = len(query) >= _LONG or _HOST.fullmatch(head) is not None
    return is_long and _BARE.fullmatch(query) is not None
