"""From the content of files to one `Config`: reading, checking, merging. Pure; `files` reads the files.

Everything that is wrong becomes a `Problem` that names its place and the next step, and does as little damage as
possible. There are three sizes of damage:

- a *warning*: an unknown key (kept in `extra`), or a policy value that cannot be read (its default is used);
- a *broken server*: its entry does not tell what to start or call, or with what. It is listed with the reason, and
  calls to it are refused with that reason; all other servers are served;
- an *unusable file*: it is not an object, or its settings contradict each other. A file that somebody named is
  refused with `ConfigError` (`strict`). A file that was only found is used as far as possible, with warnings. A
  dict counts as a file that somebody named.

Layers are merged as they were written, before anything is read into the model. So a key that is absent stays
different from a key that has the default value. Values keep their `${VAR}`: see `interpolate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ..protocol.errors import DISABLED, ConfigError, Problem, place
from ..protocol.json_values import is_array, is_object
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.near_names import nearest
from .asked_values import is_asked
from .foreign_keys import (
    DESCRIBE,
    NO_EFFECT,
    SETTING_ALIASES,
    SETTINGS_NO_EFFECT,
    ForeignValue,
    Givens,
    Note,
    adapter_settings,
    foreign_keys,
    foreign_settings,
    givens,
    is_adapters,
    is_remark,
)
from .keys import IMPORT_KINDS, SECTIONS, Key, without_effect
from .masking import hides
from .model import (
    GROUPS,
    PROFILE_KEY,
    SERVER_KEY,
    SETTING_KEY,
    SHORTEST_NAME,
    Approve,
    Config,
    Isolation,
    Lifecycle,
    Profile,
    ServerDefinition,
    Settings,
    selector,
)
from .references import (
    PATHS,
    expand_definition,
    has_reference,
    place_in,
    refers_to_session,
    session_variables,
    texts_of,
    url_problem,
    why_never_reset,
    why_never_warm,
)
from .value_kinds import TEXT, VALUE, BadValueError, did_you_mean, is_whole, kind_of, unknown

_OURS: Final = ("mcpServers", "settings", "imports", "profiles")
_TOP: Final = {*SECTIONS, *_OURS, "adapter", "inputs"}


class ConfigLayer(msgspec.Struct, frozen=True):
    """The decoded content of one file. Only the servers of an imported file are read, unless it is `as_ours`: then its
    settings and imports count too, as the weakest. `of_folder`: the file says something for this folder only."""

    source: str
    raw: Any
    imported: bool = False
    as_ours: bool = False
    of_folder: bool = False

    @property
    def only_servers(self) -> bool:
        """Whether nothing but its servers is read."""
        return self.imported and not self.as_ours


class _Problems(list[Problem]):
    """Collects problems. In a strict reading a fatal problem ends the reading; in a lenient one it becomes a
    warning."""

    def raise_fatal(self) -> None:
        if fatal := [problem for problem in self if problem.fatal]:
            raise ConfigError(fatal)

    def as_warnings(self) -> list[Problem]:
        return [skipped(problem) if problem.fatal else problem for problem in self]


_SKIPPED: Final = "; it is skipped"


def skipped(problem: Problem) -> Problem:
    """The problem of a file or setting that cannot be used, as a warning that it is skipped."""
    return replace(problem, what=f"{problem.what}{_SKIPPED}", fatal=False)


def not_skipped(problem: Problem) -> Problem:
    """The problem that `skipped` made a warning of."""
    return replace(problem, what=problem.what.removesuffix(_SKIPPED), fatal=True)


def parse_config(
    raw: Any, *, source: str = "config", environ: Mapping[str, str] | None = None, strict: bool = True
) -> Config:
    """One file's (or dict's) content as a `Config`. Raises `ConfigError` when it is unusable as a whole.

    With `environ`, references are checked too: see `merge`. `imports` are not followed here.
    """
    return merge([ConfigLayer(source, raw)], environ=environ, strict=strict)


def merge(
    layers: Sequence[ConfigLayer],
    *,
    environ: Mapping[str, str] | None = None,
    strict: bool = False,
    problems: Iterable[Problem] = (),
    is_file: bool = False,
) -> Config:
    """One `Config` from layers, strongest first. Every field keeps its source. The given `problems` come first in
    its list of problems.

    A server that one of our own files defines takes nothing from imported layers; an entry of ours that says nothing
    but `disabled` defines none, it switches the imported one. Among the imported layers, the first one that has a name
    supplies the whole entry; those that are `as_ours` are merged with each other first. With `environ`, a server whose
    URL needs variables that are not set is broken, and other references to unset variables are warnings. Raises
    `ConfigError` when `strict` and a layer or a setting cannot be used. `is_file`: the layers are files, so a setting
    may be another program's, and a mistake in one that others have too is a warning if there are servers to serve.
    """
    seen = _Problems(problems)
    own: dict[str, Givens] = {}
    imported: dict[str, Givens] = {}
    akin: dict[str, Givens] = {}  # those of imported layers that are `as_ours`
    strays: dict[str, Problem] = {}
    for layer in reversed(layers):
        if layer.imported:
            entries = _imported_entries(layer, seen, environ)
            if layer.as_ours:
                entries = {
                    name: lay_over(akin.get(name, {}), one, seen.append) for name, one in entries.items()
                }
                akin |= entries
            imported |= entries
        else:
            entries = _entries(layer, seen, strays, environ)
            own |= {name: lay_over(own.get(name, {}), entry, seen.append) for name, entry in entries.items()}
    unclaimed = {name: entry for name, entry in imported.items() if name not in strays}
    own |= {
        name: {**unclaimed[name], **entry}
        for name, entry in own.items()
        if name in unclaimed and entry.keys() == {"disabled"}
    }
    own_files = [(layer.source, layer.raw) for layer in reversed(layers) if not layer.imported]
    foreign = [(layer.source, layer.raw) for layer in reversed(layers) if layer.imported and layer.as_ours]
    of_settings = _Problems()
    said = merged_settings([*foreign, *own_files], of_settings.append, environ or {})
    settings, sources = read_settings(said, of_settings.append)
    seen += (
        skipped(each) if is_file and own and each.fatal and _is_shared(each) else each for each in of_settings
    )
    theirs = tuple(f"{source}: " for source, _ in foreign)
    seen[:] = [skipped(each) if each.fatal and each.where.startswith(theirs) else each for each in seen]
    if strict:
        seen.raise_fatal()
    warnings = seen.as_warnings()
    profiles = read_profiles(own_files, tuple({**unclaimed, **own, **strays}), warnings)
    config = _config({**unclaimed, **own}, strays, warnings, environ, settings.isolation)
    files = tuple(dict.fromkeys(layer.source for layer in layers))
    config = replace(config, settings=settings, setting_sources=sources, files=files, profiles=profiles)
    return fit_keep_alive(config)


def fit_keep_alive(config: Config) -> Config:
    """Leave at least one slot of the pool to the other servers: keep-alive servers beyond that run lazy, with a
    warning. The first ones in the configuration stay keep-alive."""
    kept = [
        name
        for name, one in config.servers.items()
        if one.lifecycle is Lifecycle.KEEP_ALIVE and not one.disabled and not one.is_api
    ]
    beyond = kept[max(0, config.settings.max_connections - 1) :]
    if not beyond:
        return config
    text = (
        f"runs lazy: {len(kept)} keep-alive servers would leave none of the {config.settings.max_connections} "
        'slots to the rest; raise "maxConnections"'
    )
    return replace(
        config,
        servers=dict(config.servers)
        | {name: replace(config.servers[name], lifecycle=Lifecycle.LAZY) for name in beyond},
        problems=(
            *config.problems,
            *(Problem(place_in(config.servers[name], "lifecycle"), text, fatal=False) for name in beyond),
        ),
    )


def _config(
    entries: Mapping[str, Givens],
    strays: Mapping[str, Problem],
    warnings: list[Problem],
    environ: Mapping[str, str] | None,
    isolation: Isolation | None,
) -> Config:
    """The servers of all layers, each served or broken."""
    servers: dict[str, ServerDefinition] = {}
    broken = {name: problem for name, problem in strays.items() if name not in entries}
    warnings += [replace(problem, fatal=name in broken) for name, problem in strays.items()]
    for name, entry in entries.items():
        definition, found = read_server(name, entry)
        later = (
            *_check_environment(definition, environ, entry),
            *_check_session(definition, isolation),
            *_check_warm(definition, isolation),
            *_check_reset(definition, isolation),
        )
        section = _section_of(entry)
        found += (each for problem in later if (each := _in_section(problem, section)) not in found)
        warnings += found
        if fatal := [problem for problem in found if problem.fatal]:
            is_off = (given := entry.get("disabled")) is not None and given.value is True
            broken[name] = replace(_summary(fatal), **({"code": DISABLED} if is_off else {}))
        else:
            servers[name] = definition
    warnings += foreign_keys(entries)
    return Config(servers=servers, problems=tuple(dict.fromkeys(warnings)), broken=broken)


def _summary(fatal: Sequence[Problem]) -> Problem:
    first, more = fatal[0], len(fatal) - 1
    return replace(first, what=f"{first.what} (and {more} more)") if more else first


# ---- the shape of a file -----------------------------------------------------------------------------------
def imports_of(raw: Any, source: str) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """The kinds that a file's `imports` names, in the file's order, and what is wrong with them."""
    wanted = raw.get("imports") if is_object(raw) else None
    if wanted is None:
        return (), ()
    if not is_array(wanted):
        what = f'must be an array like ["cursor"], is {kind_of(wanted)}; nothing is imported'
        return (), (Problem(place(source, "imports"), what, fatal=False),)
    wrong = [_bad_import(source, at, kind) for at, kind in enumerate(wanted) if kind not in IMPORT_KINDS]
    return tuple(dict.fromkeys(kind for kind in wanted if kind in IMPORT_KINDS)), tuple(wrong)


def _bad_import(source: str, position: int, kind: Any) -> Problem:
    hint = did_you_mean(kind, IMPORT_KINDS) if isinstance(kind, str) else ""
    known = ", ".join(IMPORT_KINDS)
    return Problem(
        place(source, "imports", position), f"is none of {known}{hint}; it is skipped", fatal=False
    )


def _entries(
    layer: ConfigLayer, seen: _Problems, strays: dict[str, Problem], environ: Mapping[str, str] | None
) -> dict[str, Givens]:
    """The server entries of one layer under our key names. Entries that are not objects go to `strays`."""
    if not is_object(layer.raw):
        what = f'must be an object like {{"mcpServers": {{…}}}}, is {kind_of(layer.raw)}'
        seen.append(Problem(layer.source, what))
        return {}
    raw = layer.raw
    if not layer.only_servers:
        seen += _unknown_top(raw, layer.source)
    found: dict[str, Givens] = {}
    theirs = not layer.imported and is_adapters(raw, layer.source)
    for section in SECTIONS:
        servers = raw.get(section)
        if servers is None:
            continue
        if not is_object(servers):
            what = f'must be an object like {{"name": {{"command": "…"}}}}, is {kind_of(servers)}'
            seen.append(Problem(place(layer.source, section), what))
            continue
        for name, entry in servers.items():
            path = (section, name)
            if not isinstance(name, str) or not name.strip() or not is_whole(name):
                what = "has no usable name: give it a non-empty one"
                seen.append(Problem(place(layer.source, *path), what, fatal=False))
            elif not is_object(entry):
                what = f'must be an object like {{"command": "…"}}, is {kind_of(entry)}'
                strays[name] = Problem(place(layer.source, *path), what)
            elif name in found:
                what = f'is in "{_section_of(found[name])}" too, which is used; remove one of them'
                seen.append(Problem(place(layer.source, *path), what, fatal=False))
            else:
                read = givens(entry, layer.source, path, seen.append, environ, is_adapters=theirs)
                # Of an empty entry the place is kept, for messages about it.
                found[name] = read or {"": ForeignValue(None, layer.source, path)}
    return found


def _imported_entries(
    layer: ConfigLayer, seen: _Problems, environ: Mapping[str, str] | None
) -> dict[str, Givens]:
    """The servers of another program. Errors in its file are never fatal."""
    found, strays = _Problems(), dict[str, Problem]()
    entries = _entries(layer, found, strays, environ)
    seen += found.as_warnings()
    seen += (replace(problem, fatal=False) for problem in strays.values())
    return entries


def _unknown_top(raw: Mapping[Any, Any], source: str) -> Iterable[Problem]:
    has_none = not any(section in raw for section in SECTIONS)
    for key, value in raw.items():
        if key not in _TOP and not is_remark(str(key)):
            looks_like_one = has_none and is_object(value) and ("command" in value or "url" in value)
            then = "it is ignored" + ('; was "mcpServers" around it forgotten?' if looks_like_one else "")
            what = unknown(str(key), _OURS, then)
            yield Problem(place(source, str(key)), what, fatal=False)


def servers_elsewhere(raw: Mapping[Any, Any], source: str) -> list[Problem]:
    """The keys that must be meant as servers, or as the object around them, in a dict which has no such object."""
    if any(section in raw for section in SECTIONS):
        return []
    found: list[Problem] = []
    for key, value in raw.items():
        if key in _TOP or not is_object(value):
            continue
        if nearest(str(key), _OURS) == _OURS[0]:
            found.append(Problem(place(source, str(key)), f'unknown key, did you mean "{_OURS[0]}"?'))
        elif "command" in value or "url" in value:
            what = f'unknown key: a server belongs into {{"{_OURS[0]}": {{…}}}}'
            found.append(Problem(place(source, str(key)), what))
    return found


def _section_of(entry: Givens) -> str:
    return str(next(iter(entry.values())).path[0])


# ---- Turn one server entry into its definition, and list everything that is wrong with it ---------------------------
#
# Reading goes on after the first mistake, so that the list of problems is complete. When a problem is fatal, the
# caller must not use the definition; it lists the server as broken.

_VAULT: Final = lazy_pattern(r"\$\{(?:secret|vault):")


def read_server(name: str, entry: Givens) -> tuple[ServerDefinition, list[Problem]]:
    found: list[Problem] = []
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, given in _with_bearer(entry, found.append).items():
        if given.value is None and not given.fault:
            continue
        if key in SERVER_KEY:
            read_value(SERVER_KEY[key], given, values, sources, found.append)
        elif given.fault:
            found.append(given.problem(given.fault, fatal=True))
        else:
            extra[key] = given.value
            sources[key] = given.source
            if key not in NO_EFFECT and key not in DESCRIBE:
                what = unknown(key, SERVER_KEY, "it has no effect and is kept unchanged")
                found.append(given.problem(what))
    found += _check_where(entry)
    found += _check_texts(entry)
    if (oauth := entry.get("oauth")) is not None:
        found += (oauth.problem(what, name) for name, what in without_effect(oauth.value))
    definition = ServerDefinition(
        name=name, extra=extra or _NO_OTHERS, sources=_sources(tuple(sources.items())), **values
    )
    definition = _check_isolation(definition, entry, found)
    found += _check_idle(definition, entry)
    return definition, found


_NO_OTHERS: Final[Mapping[str, Any]] = {}


@lru_cache(maxsize=256)
def _sources(said: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Where the values of a definition come from. One table for all servers whose entries have the same keys in the
    same file, as most of a large configuration have."""
    return dict(said)


def read_value(
    key: Key, given: ForeignValue, values: dict[str, Any], sources: dict[str, str], note: Note
) -> None:
    """Put one value into the model, or note a problem: fatal for an identity key, a warning for policy."""
    try:
        if given.fault:
            raise BadValueError(given.fault)
        values[key.attribute] = key.kind.read(
            given.value, lambda wrong: note(given.problem(wrong.what, *wrong.inside))
        )
        sources[key.attribute] = given.source
    except BadValueError as wrong:
        what = wrong.what if key.identity else f"{wrong.what}; the default is used"
        note(given.problem(what, *wrong.inside, fatal=key.identity))


def _with_bearer(entry: Givens, note: Note) -> Givens:
    """Add the header for `bearerToken` or `bearerTokenEnv`, unless the entry has it already."""
    rest = dict(entry)
    token, variable = rest.pop("bearerToken", None), rest.pop("bearerTokenEnv", None)
    if rest.get("auth") is not None and rest["auth"].value == "bearer":
        del rest["auth"]
    for given, form, kind in ((token, "Bearer {}", VALUE), (variable, "Bearer ${{{}}}", TEXT)):
        if given is None or given.value is None:
            continue
        try:
            _add_header(rest, given, form.format(kind.read(given.value)))
        except BadValueError as wrong:
            note(given.problem(wrong.what, *wrong.inside, fatal=True))
    return rest


def _add_header(entry: Givens, token: ForeignValue, value: str) -> None:
    headers = entry.get("headers", replace(token, value={}))
    given: Any = {} if headers.value is None else headers.value
    if is_object(given) and "authorization" not in {str(name).lower() for name in given}:
        entry["headers"] = replace(headers, value={**given, "Authorization": value})


def _check_where(entry: Givens) -> Iterable[Problem]:
    """Check that there is exactly one of command, url and socket, a usable URL, and nothing that belongs to another
    transport."""
    said = [kind for kind in WHERE if kind in entry and entry[kind].value is not None]
    first = next(iter(entry.values()))
    server = place(first.source, *first.path[:2])
    if not said and (
        api := next((entry[key] for key in APIS if key in entry and entry[key].value is not None), None)
    ):
        what = 'needs "baseUrl", the URL that its paths are added to: what a document says of that is not believed'
        yield api.problem(what, fatal=True)
    elif not said:
        yield Problem(
            server, 'has neither command, url nor socket: add "command" to start it or "url" to reach it'
        )
    elif len(said) > 1:
        what = f"must configure exactly one of command, url, or socket, has {' and '.join(said)}"
        yield Problem(server, f"{what}: remove all but one")
    else:
        yield from _check_url(entry.get("url"))
        yield from _check_belongings(said[0], entry)


def _check_url(given: ForeignValue | None) -> Iterable[Problem]:
    if given is None or not isinstance(given.value, str) or has_reference(given.value):
        return
    if given.value.strip() and (wrong := url_problem(given.value)) is not None:
        yield given.problem(wrong, fatal=True)


def _check_belongings(kind: str, entry: Givens) -> Iterable[Problem]:
    foreign = {"command": WITH_URL, "url": WITH_COMMAND, "socket": WITH_COMMAND | WITH_URL}[kind]
    for key in sorted(foreign & (entry.keys() - NO_EFFECT.keys())):
        if entry[key].value is not None:
            yield entry[key].problem(f'has no effect on a server with "{kind}"')
    if kind == "url":
        yield from _check_api(entry)


def _check_api(entry: Givens) -> Iterable[Problem]:
    """Check that nothing is said of a document that is not there, nor of MCP where an HTTP API is."""
    said = {key for key in entry if entry[key].value is not None}
    without, what = OF_DOCUMENT, 'has no effect without "openapi", the document that it is about'
    if "openapi" in said:
        without, what = frozenset[str](), ""
    elif "http" not in said:
        without, what = OF_API, 'has no effect without "openapi" or "http", which say what an HTTP API has'
    for key in sorted(without & said):
        yield entry[key].problem(what)
    for key in OF_MCP if said & {*APIS} else ():
        if key in said:
            yield entry[key].problem("has no effect on an HTTP API, which does not speak MCP")


def _check_texts(entry: Givens) -> Iterable[Problem]:
    """Check for values that another program would run or ask its user for. Here the server would get them as plain
    text."""
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


# What other programs put in the place of it: `${command:…}`, `{file:…}`. `${VAR:-default}` is ours.
_THEIRS: Final = lazy_pattern(r"\$\{(?!env:|input:|secret:|vault:|keyring:)(\w+):(?!-)|\{(file):")


def _foreign(given: ForeignValue, text: str, inside: tuple[str | int, ...]) -> Iterable[Problem]:
    if not is_asked(text) and (theirs := _THEIRS.search(text)) is not None:
        what = (
            f"holds a {theirs[0]}…}}, for which nothing is put in here: write the value itself, a variable as "
            '${NAME}, or the output of a command as "!cat FILE" (the whole value of env, headers or args)'
        )
        yield given.problem(what, *inside, fatal=True)
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
    """Check that an eager or keep-alive server is persistent: its one child exists before anybody asks for it. Of an
    eager one with warm children, these exist from then on."""
    if definition.lifecycle is Lifecycle.LAZY or definition.isolation in (None, Isolation.PERSISTENT):
        return definition
    if definition.lifecycle is Lifecycle.EAGER and definition.warm:
        return definition
    word = definition.lifecycle.value
    step = ', or "warm"' if definition.lifecycle is Lifecycle.EAGER else ""
    found.append(
        entry["lifecycle"].problem(f'"{word}" needs the isolation "persistent"{step}; it is read as "lazy"')
    )
    return replace(definition, lifecycle=Lifecycle.LAZY)


def _check_idle(definition: ServerDefinition, entry: Givens) -> Iterable[Problem]:
    """Check that a keep-alive server has no idle timeout. 0 means the same as none."""
    if definition.lifecycle is Lifecycle.KEEP_ALIVE and definition.idle_timeout:
        yield entry["idleTimeout"].problem(
            'has no effect on a "keep-alive" server, which is never stopped for being idle: remove it, or make '
            'the lifecycle "eager"'
        )


def _check_session(definition: ServerDefinition, isolation: Isolation | None) -> Iterable[Problem]:
    """Problems with credentials of a session: in a child that all sessions share, or where they would choose the
    program. `isolation`: the isolation of servers that do not set it."""
    for attribute, _, text in texts_of(definition):
        if attribute in PATHS and refers_to_session(text):
            what = "cannot hold a ${session.…}: use it in env, headers, url or args"
            yield Problem(place_in(definition, attribute), what)
    needed = sorted(session_variables(definition))
    if definition.is_as_caller:
        yield from _check_caller(definition, isolation)
    elif needed and (definition.isolation or isolation) in (None, Isolation.PERSISTENT):
        what = (
            f"needs ${{session.{needed[0]}}}, and its process is shared by all sessions: "
            'add "isolation": "per_session", or "per_call"'
        )
        yield Problem(place_in(definition), what)


def _check_warm(definition: ServerDefinition, isolation: Isolation | None) -> Iterable[Problem]:
    """The problem with children that are to be started ahead and cannot be: the server is served without them.
    `isolation`: of servers that do not set it."""
    if not definition.warm:
        return
    what, shared = why_never_warm(definition), _why_shared(definition, isolation)
    if what is None and shared is not None:
        what = f"{shared}: {_ISOLATE}, or remove it"
    if what is not None:
        yield Problem(place_in(definition, "warm"), what, fatal=False)


def _check_reset(definition: ServerDefinition, isolation: Isolation | None) -> Iterable[Problem]:
    """The problem with a tool that cannot reset children, although its entry says so: they are used once each.
    `isolation`: of servers that do not set it."""
    if definition.reset is None:
        return
    what, shared = why_never_reset(definition), _why_shared(definition, isolation)
    if shared is not None:
        more = "" if definition.warm else ' and "warm"'
        what = f"{shared}: {_ISOLATE}{more}, or remove it"
    if what is not None:
        yield Problem(place_in(definition, "reset"), what, fatal=False)


_ISOLATE: Final = 'add "isolation": "per_session" or "per_call"'


def _why_shared(definition: ServerDefinition, isolation: Isolation | None) -> str | None:
    """Why a key for the children of single sessions or calls has no effect, or not everywhere. None: it has one."""
    own = definition.isolation or isolation
    if own is None:
        return "has an effect only over HTTP, where each session has its own child"
    return "is for a child per session or per call" if own is Isolation.PERSISTENT else None


def _check_caller(definition: ServerDefinition, isolation: Isolation | None) -> Iterable[Problem]:
    """Problems of a server that is called as its caller: what would mix two callers, or cannot be done."""
    if (definition.isolation or isolation) is not Isolation.PER_SESSION:
        what = 'is called as its caller, so two of them must not share a connection: add "isolation": "per_session"'
        yield Problem(place_in(definition), what)
    if definition.url is None or definition.is_api:
        what = 'calls as its caller, which only an MCP server with a "url" can be: remove "grantType"'
        yield Problem(place_in(definition, "oauth"), what)
    if definition.auth is False:
        what = 'calls as its caller, and "auth" says that nobody logs in: remove one of them'
        yield Problem(place_in(definition, "oauth"), what)
    if definition.request_headers_command is not None:
        what = 'could put another Authorization in the place of the caller\'s: remove it, or "grantType"'
        yield Problem(place_in(definition, "request_headers_command"), what)
    for name in ("issuer", "identityProvider"):
        url = (definition.oauth or {}).get(name)
        if isinstance(url, str) and not has_reference(url) and (wrong := url_problem(url)) is not None:
            yield Problem(place_in(definition, "oauth", name), wrong)


def _check_environment(
    definition: ServerDefinition, environ: Mapping[str, str] | None, entry: Givens
) -> list[Problem]:
    if environ is None or definition.disabled:
        return []
    is_strict = any(given.is_adapters for given in entry.values())
    try:
        found = expand_definition(definition, environ, is_strict=is_strict).problems
    except ConfigError as error:
        found = error.problems
    return [_as_written(problem, definition, entry) for problem in found]


def _in_section(problem: Problem, section: str) -> Problem:
    """The problem with its place as the file has it: `servers.x` where a server is not in `mcpServers`."""
    if section == "mcpServers":
        return problem
    return replace(problem, where=problem.where.replace(": mcpServers", f": {section}", 1))


def _as_written(problem: Problem, definition: ServerDefinition, entry: Givens) -> Problem:
    """The problem of a header that was made of a token, named by the key that the file has."""
    source = definition.sources.get("headers", "")
    if problem.where != place(source, "mcpServers", definition.name, "headers", "Authorization"):
        return problem
    given, is_variable = _token_of(entry)
    if given is None:
        return problem
    problem = replace(problem, where=given.place())
    if is_variable and not problem.fatal:
        what = f"the environment variable {given.value} is not set, read as empty"
        problem = replace(problem, what=what, step="Set it where Greenroom is started")
    return problem


def _token_of(entry: Givens) -> tuple[ForeignValue | None, bool]:
    """The key of which the header `Authorization` was made, and whether it names a variable; None: the header is in the
    file itself."""
    headers = entry.get("headers")
    if headers is not None and is_object(headers.value) and "Authorization" in headers.value:
        is_of_auth = headers.path[-1:] != ("headers",)
        return headers if is_of_auth else None, False
    token = entry.get("bearerToken")
    if token is not None and token.value is not None:
        return token, False
    return entry.get("bearerTokenEnv"), True


# ---- Turn the settings of one or several files into `Settings` ------------------------------------------------------
#
# A setting of a group has the group before its name, as in the model: `restartBackoff.minMs`. Settings are merged
# shallowly: a stronger file replaces single keys, and groups as a whole. Only `http` is merged part by part, so that no
# file drops a token by saying something else of the door; a value there that cannot be read replaces nothing. A wrong
# value is fatal in a file that was named, and a warning in one that was found; the caller knows which it is. When
# limits contradict each other (`minConnections` not below `maxConnections`), both fall back to their defaults, for
# neither can be trusted alone.

_DOOR: Final = frozenset({"http", "http.oauth"})
_GUARDS: Final = ("http.tokens", "http.ownerTokens", "http.oauth.issuer")  # what says who may come in


# The settings that pi's file has as well: a file named with --config may be one of pi, and no mistake in another
# program's file keeps its servers from being served.
_SHARED: Final = frozenset(
    "approve approveTools directTools idleTimeout oauthDir outputGuard requestTimeoutMs toolPrefix".split()
)


def _is_shared(problem: Problem) -> bool:
    """Whether the problem is of a setting that other programs have, or of the adapter's block."""
    _, _, where = problem.where.partition(": ")
    block, _, inside = where.partition(".")
    return block == "adapter" or (block == "settings" and re.split(r"[.\[]", inside)[0] in {"", *_SHARED})


def merged_settings(layers: Iterable[tuple[str, Any]], note: Note, environ: Mapping[str, str]) -> Givens:
    """The settings of `(source, content)` pairs, weakest first; the stronger replaces single keys."""
    merged: Givens = {}
    wrong: dict[str, Problem] = {}
    for source, raw in layers:
        for block in ("adapter", "settings"):
            said: Any = raw.get(block) if is_object(raw) else None
            if said is not None and not is_object(said):
                note(Problem(place(source, block), f"must be an object, is {kind_of(said)}"))
                said = {} if block == "adapter" else None  # the adapter's file still, with its isolation
            if is_object(said):
                _lay(merged, wrong, _block(block, said, source, note, environ))
    is_guarded = any(merged[name].value for name in _GUARDS if name in merged)
    for problem in wrong.values():
        if problem.fatal or not is_guarded:
            note(problem)
    return merged


def _lay(lower: Givens, wrong: dict[str, Problem], upper: Givens) -> None:
    """Lay `upper` over `lower`. A group that stands in `upper` itself replaces what `lower` has of it. What is wrong of
    the door goes to `wrong`, by its name, and is not fatal any more when a stronger file says that part rightly."""
    refused = {name: problem for name, given in upper.items() if (problem := _refused(name, given))}
    replaced = tuple(f"{name}." for name in upper if name in GROUPS and name not in refused)
    for name in [name for name in lower if name.startswith(replaced)]:
        del lower[name]
    for name, given in upper.items():
        if name not in refused:
            lower[name] = given
    for name in [*wrong]:
        if name in upper or name.startswith(replaced):
            del wrong[name]
        elif any(other.startswith(f"{name}.") for other in upper):
            wrong[name] = replace(wrong[name], fatal=False)
    wrong |= refused


def _refused(name: str, given: ForeignValue) -> Problem | None:
    """The problem of a setting that belongs to the HTTP door; None if it has none, or is another setting."""
    if given.value is None or not (name in _DOOR or (name.startswith("http.") and name in SETTING_KEY)):
        return None
    if name in _DOOR:
        return given.problem(f"must be an object, is {kind_of(given.value)}", fatal=True)
    try:
        SETTING_KEY[name].kind.read(given.value)
    except BadValueError as wrong:
        return given.problem(wrong.what, *wrong.inside, fatal=True)
    return None


def _block(
    block: str, said: Mapping[Any, Any], source: str, note: Note, environ: Mapping[str, str]
) -> Givens:
    if block == "adapter":
        return adapter_settings(said, source, note, environ)
    found = {str(key): ForeignValue(value, source, (block, str(key))) for key, value in said.items()}
    for theirs, ours in SETTING_ALIASES.items():
        if theirs in found:
            found.setdefault(ours, found.pop(theirs))
    return _opened(found, note)


def _opened(values: Givens, note: Note, prefix: str = "") -> Givens:
    """Settings with those of groups under their whole names. A group that is merged as a whole leaves its place."""
    found: Givens = {}
    for key, given in values.items():
        name = prefix + key
        if name == "outputGuard" and isinstance(given.value, bool):
            off = {} if given.value else {"maxBytes": 0, "maxLines": 0, "maxImageBytes": 0}
            given = replace(given, value=off)
        if name in GROUPS and is_object(given.value):
            parts = {
                str(part): ForeignValue(value, given.source, (*given.path, str(part)))
                for part, value in given.value.items()
            }
            if name not in _DOOR:
                found[name] = replace(given, value=None)
            found |= _opened(parts, note, f"{name}.")
        elif "." in str(given.path[-1]):
            if not is_remark(key):
                note(given.problem("unknown key: it is ignored"))
        else:
            found[name] = given
    return found


def read_settings(merged: Givens, note: Note) -> tuple[Settings, dict[str, str]]:
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, given in merged.items():
        group, _, last = name.rpartition(".")
        if name in GROUPS and given.value is not None:
            then = "; the default is used" if given.is_adapters else ""
            what = f"must be an object, is {kind_of(given.value)}{then}"
            note(given.problem(what, fatal=not given.is_adapters))
        elif name in SETTING_KEY and (given.value is not None or given.fault):
            read_value(
                replace(SETTING_KEY[name], identity=not given.is_adapters), given, values, sources, note
            )
        elif name not in {*GROUPS, *SETTING_KEY, *SETTINGS_NO_EFFECT} and not is_remark(last):
            beside = [each.rpartition(".") for each in (*SETTING_KEY, *GROUPS)]
            known = [each for of, _, each in beside if of == group]
            note(given.problem(unknown(last, known, "it is ignored")))
    for problem in foreign_settings(merged):
        note(problem)
    _check_ranges(values, merged, note)
    if (isolation := merged.get("isolation")) is not None and isolation.is_adapters:
        values.setdefault("isolation", Isolation.PER_SESSION)  # nothing is shared for a slip in the word
    if "approve" in merged and "approve" not in sources and merged["approve"].value is not None:
        # It cannot be read, so nobody knows which calls it would have let pass.
        values["approve"] = Approve.ALL
    return Settings(**values), sources


_RANGES: Final = (
    (
        "restartBackoff.minMs",
        "restartBackoff.maxMs",
        "must not be above maxMs",
        "must not be below minMs",
        False,
    ),
    (
        "minConnections",
        "maxConnections",
        "must be below maxConnections",
        "must be above minConnections",
        True,
    ),
)


def _check_ranges(values: dict[str, Any], merged: Givens, note: Note) -> None:
    defaults = Settings()
    for low, high, below, above, apart in _RANGES:
        of_low, of_high = SETTING_KEY[low].attribute, SETTING_KEY[high].attribute
        least = values.get(of_low, getattr(defaults, of_low))
        most = values.get(of_high, getattr(defaults, of_high))
        if least > most or (apart and least == most):
            given, what = (merged[low], below) if of_low in values else (merged[high], above)
            then = "; the defaults are used" if given.is_adapters else ""
            note(given.problem(f"{what}{then}", fatal=not given.is_adapters))
            values.pop(of_low, None)
            values.pop(of_high, None)
    if Settings(**values).longest_name < SHORTEST_NAME:
        what = f"leaves names fewer than {SHORTEST_NAME} characters: use a shorter one, or a larger nameLimit"
        note(merged["clientPrefix"].problem(what, fatal=True))
        del values["client_prefix"]


def read_profiles(
    layers: Sequence[tuple[str, Any]], servers: Sequence[str], problems: list[Problem]
) -> dict[str, Profile]:
    """The profiles of `(source, content)` pairs, weakest first. A stronger file replaces a whole profile."""
    found: dict[str, Profile] = {}
    for source, raw in layers:
        said = raw.get("profiles") if is_object(raw) else None
        if is_object(said):
            for name, one in said.items():
                found.pop(str(name), None)
                if not is_remark(str(name)):
                    _read_one(str(name), one, source, servers, found, problems)
        elif said is not None:
            what = f'must be an object like {{"work": {{"servers": […]}}}}, is {kind_of(said)}'
            problems.append(Problem(place(source, "profiles"), what, fatal=False))
    return found


def _read_one(
    name: str,
    said: Any,
    source: str,
    servers: Sequence[str],
    found: dict[str, Profile],
    problems: list[Problem],
) -> None:
    def bad(what: str, *where: str | int) -> None:
        problems.append(Problem(place(source, "profiles", name, *where), what, fatal=False))

    def bad_member(key: str, wrong: BadValueError) -> None:
        bad(wrong.what, key, *wrong.inside)

    refused = "; the profile is left out, and clients that name it are refused"
    if not is_object(said):
        bad(f'must be an object like {{"servers": […]}}, is {kind_of(said)}{refused}')
        return
    values: dict[str, Any] = {}
    for key, value in said.items():
        try:
            if str(key) in PROFILE_KEY:
                where = partial(bad_member, str(key))
                values[PROFILE_KEY[str(key)].attribute] = PROFILE_KEY[str(key)].kind.read(value, where)
            elif not is_remark(str(key)):
                # It may have been meant to leave something out.
                raise BadValueError(unknown(str(key), PROFILE_KEY, "it is not a key of a profile"))
        except BadValueError as error:
            bad(f"{error.what}{refused}", str(key), *error.inside)
            return
    for at, pattern in enumerate(values.get("servers", ())):
        if not any(map(selector((pattern,)), servers)):
            bad(f"no server has this name{did_you_mean(pattern, servers)}", "servers", at)
    found[name] = Profile(**values)


# ---- Merge two entries of one server, field by field, so that no secret reaches another recipient -------------------
#
# A stronger file changes single fields of a weaker one: a project sets `lifecycle` to eager and keeps the command
# from the user's own file. Such a merge must never carry a secret to another recipient. So when the stronger file
# changes *where the server is*, these fields of the weaker file are dropped:
#
# - a `command` drops the HTTP fields and the socket; a `url` drops the stdio fields and the socket; a `socket`
#   drops both;
# - a different `url` drops headers and tokens; a different `command` drops arguments, environment and directory.
#   (An `env` full of tokens is as secret as a header.)
#
# The command alone does not say what runs. `node` runs what its arguments name, a relative name is looked up in
# `cwd`, and `NODE_OPTIONS` in an `env` can load anything. So a stronger file that changes any of these keeps the
# command but takes no credentials that were written for it: no environment, and no arguments that hold a secret.
# The transport of a URL is treated the same way. To give a field that the weaker file lacks is to change it. A
# warning names what was dropped, because the server may need it.
#
# Every layer is merged with the sum of all weaker layers, so a credential cannot jump over a layer either. `null`
# in a stronger file removes a field. A field that has the same value again changes nothing and drops nothing.

APIS: Final = ("openapi", "http")  # with one of them, an HTTP API is at `url`
OF_DOCUMENT: Final = frozenset({"specHash", "includeOperations", "excludeOperations"})
OF_API: Final = frozenset({*APIS, *OF_DOCUMENT, "outputSchemas", "uploads"})
OF_MCP: Final = ("era", "httpTransport")  # without effect on an HTTP API
WITH_COMMAND: Final = frozenset(
    {"args", "env", "cwd", "inheritEnv", "pluginDataDir", "literalEnv", "envFile"}
)
WITH_URL: Final = frozenset(
    {
        "headers",
        "httpTransport",
        "auth",
        "oauth",
        "bearerToken",
        "bearerTokenEnv",
        "bearerTokenStore",
        "requestHeadersCommand",
        *OF_API,
    }
)
WHERE: Final = ("command", "url", "socket")
_BELONGINGS: Final = {
    "command": WITH_COMMAND | {"command"},
    "url": WITH_URL | {"url"},
    "socket": frozenset({"socket"}),
}
# Fields that decide what runs or who is called, and the credentials that were meant for that.
_STEERS: Final = (
    (
        ("command", "args", "cwd", "env", "pluginDataDir", "literalEnv", "envFile"),
        frozenset({"env", "inheritEnv", "literalEnv", "envFile"}),
    ),
    (("url", "httpTransport", "requestHeadersCommand", *APIS), WITH_URL - {"httpTransport"} - OF_API),
)
_CREDENTIALS: Final = _STEERS[0][1] | _STEERS[1][1]


def lay_over(lower: Givens, higher: Givens, note: Note | None = None) -> Givens:
    """Both entries merged; `higher` is from the stronger file. `note` is told what was dropped."""
    dropped: set[str] = set()
    for kind in WHERE:
        if kind in higher and higher[kind].value is not None:
            dropped |= _dropped_by(kind, lower, higher)
    if lower:
        dropped |= {name for name in _left_behind(lower, higher) if not _is_refusal(name, lower)}
    kept = {name: given for name, given in lower.items() if name not in dropped}
    both = {**kept, **higher}
    if note is not None and (lost := _lost(lower, both, dropped)):
        note(_told(lower, higher, lost))
    return both


def _dropped_by(kind: str, lower: Givens, higher: Givens) -> set[str]:
    dropped = {name for other in WHERE if other != kind for name in _BELONGINGS[other]}
    if kind in lower and _differs(kind, lower, higher):
        dropped |= {name for name in _BELONGINGS[kind] if not _is_refusal(name, lower)}
    return dropped


def _left_behind(lower: Givens, higher: Givens) -> set[str]:
    """The credentials of the weaker file that the stronger file would send to another recipient."""
    found: set[str] = set()
    for steering, credentials in _STEERS:
        if any(name in higher and _differs(name, lower, higher) for name in steering):
            found |= credentials
            if "args" not in higher and "args" in steering and "args" in lower and hides(lower["args"].value):
                found.add("args")
    return found


def _differs(name: str, lower: Givens, higher: Givens) -> bool:
    before = lower[name].value if name in lower else None
    return before != higher[name].value


def _is_refusal(name: str, lower: Givens) -> bool:
    """`oauth: false` is not a credential but a decision against one, so it stays."""
    return name == "oauth" and name in lower and lower[name].value is False


def _lost(lower: Givens, both: Givens, dropped: set[str]) -> list[str]:
    """The dropped credentials that the stronger file does not replace, which its author may not expect."""
    names = (_CREDENTIALS | {"args"}) & dropped & lower.keys() - both.keys()
    return sorted(name for name in names if lower[name].value is not None)


def _told(lower: Givens, higher: Givens, lost: list[str]) -> Problem:
    steers = (*WHERE, *(name for names, _ in _STEERS for name in names))
    changed_by = (name for name in steers if name in higher and _differs(name, lower, higher))
    # Where it is was given in two ways, and the stronger file repeats one of them: the other is not used any more.
    steering = next(changed_by, None) or next(name for name in WHERE if name in higher)
    changed = "what runs" if steering in _STEERS[0][0] else "who is called"
    names = ", ".join(f'"{lower[name].path[-1]}"' for name in lost)
    sources = ", ".join(dict.fromkeys(lower[name].source for name in lost))
    return higher[steering].problem(
        f"changes {changed}, so {names} of {sources} {'is' if len(lost) == 1 else 'are'} not used with it: "
        "write them into this file too, if they are meant for it"
    )
