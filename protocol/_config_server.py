"""Turn one server entry into its definition, and list everything that is wrong with it.

Reading goes on after the first mistake, so that the list of problems is complete. When a problem is fatal, the
caller must not use the definition; it lists the server as broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from ._config_dialects import Given, Givens, Note
from ._config_foreign import DESCRIBE, NO_EFFECT
from ._config_key import Key
from ._config_keys import SERVER_KEY
from ._config_merge import WHERE, WITH_COMMAND, WITH_URL
from ._config_oauth import without_effect
from ._config_place import place
from .config import Isolation, Lifecycle, ServerDefinition
from .config_readers import TEXT, VALUE, BadValueError, is_array, is_object, unknown
from .errors import ConfigError, Problem
from .interpolate import (
    expand_definition,
    has_reference,
    refers_to_session,
    session_variables,
    texts_of,
    url_problem,
)

_VAULT: Final = re.compile(r"\$\{(?:secret|vault):")


def read_server(name: str, entry: Givens) -> tuple[ServerDefinition, list[Problem]]:
    found: list[Problem] = []
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, given in _with_bearer(entry, found.append).items():
        if given.value is None:
            continue
        if key in SERVER_KEY:
            read_value(SERVER_KEY[key], given, values, sources, found.append)
        else:
            extra[key] = given.value
            sources[key] = given.source
            if key not in NO_EFFECT and key not in DESCRIBE:
                what = unknown(key, SERVER_KEY, "it has no effect and is kept as read")
                found.append(given.problem(what))
    found += _check_where(entry)
    found += _check_texts(entry)
    if (oauth := entry.get("oauth")) is not None:
        found += (oauth.problem(what, name) for name, what in without_effect(oauth.value))
    definition = ServerDefinition(name=name, extra=extra, sources=sources, **values)
    definition = _check_isolation(definition, entry, found)
    found += _check_idle(definition, entry)
    return definition, found


def read_value(key: Key, given: Given, values: dict[str, Any], sources: dict[str, str], note: Note) -> None:
    """Put one value into the model, or note a problem: fatal for an identity key, a warning for policy."""
    try:
        values[key.attribute] = key.reader.read(given.value)
        sources[key.attribute] = given.source
    except BadValueError as wrong:
        what = wrong.what if key.identity else f"{wrong.what}; the default is used"
        note(given.problem(what, *wrong.inside, fatal=key.identity))


def _with_bearer(entry: Givens, note: Note) -> Givens:
    """`bearerToken` and `bearerTokenEnv` are one more header, unless it is there already."""
    rest = dict(entry)
    token, variable = rest.pop("bearerToken", None), rest.pop("bearerTokenEnv", None)
    if rest.get("auth") is not None and rest["auth"].value == "bearer":
        del rest["auth"]
    for given, form, reader in ((token, "Bearer {}", VALUE), (variable, "Bearer ${{{}}}", TEXT)):
        if given is None or given.value is None:
            continue
        try:
            _add_header(rest, given, form.format(reader.read(given.value)))
        except BadValueError as wrong:
            note(given.problem(wrong.what, *wrong.inside, fatal=True))
    return rest


def _add_header(entry: Givens, token: Given, value: str) -> None:
    headers = entry.get("headers", attrs.evolve(token, value={}))
    given: Any = {} if headers.value is None else headers.value
    if is_object(given) and "authorization" not in {str(name).lower() for name in given}:
        entry["headers"] = attrs.evolve(headers, value={**given, "Authorization": value})


def _check_where(entry: Givens) -> Iterable[Problem]:
    """Exactly one of command, url, socket; a usable URL; nothing that belongs to another transport."""
    said = [kind for kind in WHERE if kind in entry and entry[kind].value is not None]
    first = next(iter(entry.values()))
    server = place(first.source, *first.path[:2])
    if not said:
        yield Problem(
            server, 'has neither command, url nor socket: add "command" to start it or "url" to reach it'
        )
    elif len(said) > 1:
        what = f"must configure exactly one of command, url, or socket, has {' and '.join(said)}"
        yield Problem(server, f"{what}: remove all but one")
    else:
        yield from _check_url(entry.get("url"))
        yield from _check_belongings(said[0], entry)


def _check_url(given: Given | None) -> Iterable[Problem]:
    if given is None or not isinstance(given.value, str) or has_reference(given.value):
        return
    if given.value.strip() and (wrong := url_problem(given.value)) is not None:
        yield given.problem(wrong, fatal=True)


def _check_belongings(kind: str, entry: Givens) -> Iterable[Problem]:
    foreign = {"command": WITH_URL, "url": WITH_COMMAND, "socket": WITH_COMMAND | WITH_URL}[kind]
    for key in sorted(foreign & (entry.keys() - NO_EFFECT.keys())):
        if entry[key].value is not None:
            yield entry[key].problem(f'has no effect on a server with "{kind}"')


def _check_texts(entry: Givens) -> Iterable[Problem]:
    """Values that another program would run or ask the user for. Here the server would get them as plain text."""
    for key in ("command", "args", "env", "cwd", "url", "headers", "bearerToken"):
        if (given := entry.get(key)) is not None:
            yield from (
                each for inside, text in _texts(given.value) for each in _foreign(given, text, inside)
            )


def _texts(value: Any) -> Iterable[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield (), value
    pairs = value.items() if is_object(value) else enumerate(value) if is_array(value) else ()
    for key, each in pairs:
        if isinstance(each, str):
            yield (key if isinstance(key, int) else str(key),), each


def _foreign(given: Given, text: str, inside: tuple[str | int, ...]) -> Iterable[Problem]:
    if "${input:" in text:
        what = (
            "asks for an ${input:…}, which is not asked for here: refer to a variable as ${NAME}, and set it"
        )
        yield given.problem(what, *inside, fatal=True)
    if (found := _VAULT.search(text)) is not None:
        what = (
            f"refers to a vault ({found[0]}…), which is not supported here: refer to a variable as ${{NAME}}, "
            'or to a command as "!command", or to the keyring as {"keyring": "service/name"}'
        )
        yield given.problem(what, *inside, fatal=True)


def _check_isolation(definition: ServerDefinition, entry: Givens, found: list[Problem]) -> ServerDefinition:
    """Eager and keep-alive mean one child that is there before anybody asks: persistent."""
    if definition.lifecycle is Lifecycle.LAZY or definition.isolation in (None, Isolation.PERSISTENT):
        return definition
    word = definition.lifecycle.value
    found.append(
        entry["lifecycle"].problem(f'"{word}" needs the isolation "persistent"; it is read as "lazy"')
    )
    return attrs.evolve(definition, lifecycle=Lifecycle.LAZY)


def _check_idle(definition: ServerDefinition, entry: Givens) -> Iterable[Problem]:
    """A keep-alive server has no idle timeout; 0 says the same and is allowed."""
    if definition.lifecycle is Lifecycle.KEEP_ALIVE and definition.idle_timeout:
        yield entry["idleTimeout"].problem(
            'has no effect on a "keep-alive" server, which is never stopped for being idle: remove it, or make '
            'the lifecycle "eager"'
        )


def check_session(definition: ServerDefinition, isolation: Isolation | None) -> Iterable[Problem]:
    """Problems with credentials of a session: in a child that all sessions share, or where they would choose the
    program. `isolation`: the isolation of servers that do not set it."""
    for attribute, _, text in texts_of(definition):
        if attribute in ("command", "cwd", "socket", "env_file") and refers_to_session(text):
            what = "cannot hold a ${session.…}: use it in env, headers, url or args"
            yield Problem(_place_in(definition, attribute), what)
    needed = sorted(session_variables(definition))
    if needed and (definition.isolation or isolation) in (None, Isolation.PERSISTENT):
        what = (
            f"needs ${{session.{needed[0]}}}, and its process is shared by all sessions: "
            'add "isolation": "per_session", or "per_call"'
        )
        yield Problem(_place_in(definition), what)


def _place_in(definition: ServerDefinition, *inside: str) -> str:
    source = definition.sources.get(inside[0] if inside else "isolation") or next(
        iter(definition.sources.values()), ""
    )
    return place(source, "mcpServers", definition.name, *inside)


def check_environment(
    definition: ServerDefinition, environ: Mapping[str, str] | None, entry: Givens
) -> list[Problem]:
    if environ is None or definition.disabled:
        return []
    try:
        found = expand_definition(definition, environ).problems
    except ConfigError as error:
        found = error.problems
    return [_as_written(problem, definition, entry) for problem in found]


def _as_written(problem: Problem, definition: ServerDefinition, entry: Givens) -> Problem:
    """The problem of a header that was made of a token, at the key that the file has."""
    source = definition.sources.get("headers", "")
    if problem.where != place(source, "mcpServers", definition.name, "headers", "Authorization"):
        return problem
    given, is_variable = _token_of(entry)
    if given is None:
        return problem
    what = problem.what
    if is_variable and not problem.fatal:
        what = f"the environment variable {given.value} is not set, read as empty: set it"
    return Problem(given.place(), what, problem.fatal)


def _token_of(entry: Givens) -> tuple[Given | None, bool]:
    """What the header `Authorization` was made of, and whether that names a variable; None: it is written itself."""
    headers = entry.get("headers")
    if headers is not None and is_object(headers.value) and "Authorization" in headers.value:
        return None, False
    token = entry.get("bearerToken")
    if token is not None and token.value is not None:
        return token, False
    return entry.get("bearerTokenEnv"), True
