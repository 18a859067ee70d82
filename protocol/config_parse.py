"""From the content of files to one `Config`: reading, checking, merging. Pure; the supervisor reads the files.

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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from ._config_dialects import Given, Givens, givens, is_remark
from ._config_foreign import foreign_keys
from ._config_hash import definition_hash, pin_key, policy_only_change
from ._config_keys import IMPORT_KINDS
from ._config_merge import lay_over
from ._config_place import place
from ._config_profiles import read_profiles
from ._config_redact import redacted, secrets_of
from ._config_schema import config_schema
from ._config_server import check_environment, check_session, read_server
from ._config_settings import merged_settings, read_settings
from ._config_trust import SECTIONS, digest, what_matters
from .config import Config, Isolation, Lifecycle, ServerDefinition
from .config_readers import did_you_mean, is_array, is_object, is_whole, kind_of, unknown
from .errors import DISABLED, ConfigError, Problem

__all__ = [
    "IMPORT_KINDS",
    "SECTIONS",
    "Layer",
    "config_schema",
    "definition_hash",
    "digest",
    "fit_keep_alive",
    "imports_of",
    "is_array",
    "is_object",
    "merge",
    "parse_config",
    "pin_key",
    "place",
    "policy_only_change",
    "redacted",
    "secrets_of",
    "what_matters",
]

_OURS: Final = ("mcpServers", "settings", "imports", "profiles")
_TOP: Final = {*SECTIONS, *_OURS, "adapter", "inputs"}


@attrs.frozen
class Layer:
    """The decoded content of one file. Of an imported file only the servers are read, unless it is `as_ours`: then its
    settings and its imports count too, as the weakest."""

    source: str
    raw: Any
    imported: bool = False
    as_ours: bool = False

    @property
    def only_servers(self) -> bool:
        """Whether nothing but its servers is read."""
        return self.imported and not self.as_ours


class _Problems(list[Problem]):
    """Collects problems. A fatal problem ends a strict reading, and is a warning in a lenient one."""

    def raise_fatal(self) -> None:
        if fatal := [problem for problem in self if problem.fatal]:
            raise ConfigError(fatal)

    def as_warnings(self) -> list[Problem]:
        return [_skipped(problem) if problem.fatal else problem for problem in self]


def _skipped(problem: Problem) -> Problem:
    return attrs.evolve(problem, what=f"{problem.what}; it is skipped", fatal=False)


def parse_config(
    raw: Any, *, source: str = "config", environ: Mapping[str, str] | None = None, strict: bool = True
) -> Config:
    """One file's (or dict's) content as a `Config`. Raises `ConfigError` when it is unusable as a whole.

    With `environ`, references are checked too: see `merge`. `imports` are not followed here.
    """
    return merge([Layer(source, raw)], environ=environ, strict=strict)


def merge(
    layers: Sequence[Layer],
    *,
    environ: Mapping[str, str] | None = None,
    strict: bool = False,
    problems: Iterable[Problem] = (),
) -> Config:
    """One `Config` from layers, strongest first. Every field keeps its source. The given `problems` come first in
    its list of problems.

    A server that one of our own files defines takes nothing from imported layers; an entry of ours that says nothing
    but `disabled` defines none, it switches the imported one. Among the imported layers, the first one that has a name
    supplies the whole entry; those that are `as_ours` are merged with each other first. With `environ`, a server whose
    URL needs variables that are not set is broken, and other references to unset variables are warnings. Raises
    `ConfigError` when `strict` and a layer or a setting cannot be used.
    """
    seen = _Problems(problems)
    own: dict[str, Givens] = {}
    imported: dict[str, Givens] = {}
    akin: dict[str, Givens] = {}  # those of imported layers that are `as_ours`
    strays: dict[str, Problem] = {}
    for layer in reversed(layers):
        if layer.imported:
            entries = _imported_entries(layer, seen)
            if layer.as_ours:
                entries = {
                    name: lay_over(akin.get(name, {}), one, seen.append) for name, one in entries.items()
                }
                akin |= entries
            imported |= entries
        else:
            entries = _entries(layer, seen, strays)
            own |= {name: lay_over(own.get(name, {}), entry, seen.append) for name, entry in entries.items()}
    unclaimed = {name: entry for name, entry in imported.items() if name not in strays}
    own |= {
        name: {**unclaimed[name], **entry}
        for name, entry in own.items()
        if name in unclaimed and entry.keys() == {"disabled"}
    }
    own_files = [(layer.source, layer.raw) for layer in reversed(layers) if not layer.imported]
    foreign = [(layer.source, layer.raw) for layer in reversed(layers) if layer.imported and layer.as_ours]
    said = merged_settings([*foreign, *own_files], seen.append)
    settings, sources = read_settings(said, seen.append)
    theirs = tuple(f"{source}: " for source, _ in foreign)
    seen[:] = [_skipped(each) if each.fatal and each.where.startswith(theirs) else each for each in seen]
    if strict:
        seen.raise_fatal()
    warnings = seen.as_warnings()
    profiles = read_profiles(own_files, tuple({**unclaimed, **own, **strays}), warnings)
    config = _config({**unclaimed, **own}, strays, warnings, environ, settings.isolation)
    files = tuple(dict.fromkeys(layer.source for layer in layers))
    config = attrs.evolve(config, settings=settings, setting_sources=sources, files=files, profiles=profiles)
    return fit_keep_alive(config)


def fit_keep_alive(config: Config) -> Config:
    """Leave at least one slot of the pool to the other servers: keep-alive servers beyond that run lazy, with a
    warning. The first ones in the configuration stay keep-alive."""
    kept = [
        name
        for name, one in config.servers.items()
        if one.lifecycle is Lifecycle.KEEP_ALIVE and not one.disabled
    ]
    beyond = kept[max(0, config.settings.max_connections - 1) :]
    if not beyond:
        return config
    text = (
        f"runs lazy: {len(kept)} keep-alive servers would leave none of the {config.settings.max_connections} "
        'slots to the rest; raise "maxConnections"'
    )
    where = {
        name: f"{config.servers[name].sources.get('lifecycle', 'config')}: mcpServers.{name}"
        for name in beyond
    }
    return attrs.evolve(
        config,
        servers=dict(config.servers)
        | {name: attrs.evolve(config.servers[name], lifecycle=Lifecycle.LAZY) for name in beyond},
        problems=config.problems + tuple(Problem(where[name], text, fatal=False) for name in beyond),
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
    warnings += [attrs.evolve(problem, fatal=name in broken) for name, problem in strays.items()]
    for name, entry in entries.items():
        definition, found = read_server(name, entry)
        found += (
            problem for problem in check_environment(definition, environ, entry) if problem not in found
        )
        found += check_session(definition, isolation)
        warnings += found
        if fatal := [problem for problem in found if problem.fatal]:
            is_off = (given := entry.get("disabled")) is not None and given.value is True
            broken[name] = attrs.evolve(_summary(fatal), **({"code": DISABLED} if is_off else {}))
        else:
            servers[name] = definition
    warnings += foreign_keys(entries)
    return Config(servers=servers, problems=tuple(dict.fromkeys(warnings)), broken=broken)


def _summary(fatal: Sequence[Problem]) -> Problem:
    first, more = fatal[0], len(fatal) - 1
    return attrs.evolve(first, what=f"{first.what} (and {more} more)") if more else first


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


def _entries(layer: Layer, seen: _Problems, strays: dict[str, Problem]) -> dict[str, Givens]:
    """The server entries of one layer under our key names. Entries that are not objects go to `strays`."""
    if not is_object(layer.raw):
        what = f'must be an object like {{"mcpServers": {{…}}}}, is {kind_of(layer.raw)}'
        seen.append(Problem(layer.source, what))
        return {}
    raw = layer.raw
    if not layer.only_servers:
        seen += _unknown_top(raw, layer.source)
    found: dict[str, Givens] = {}
    for section in SECTIONS:
        for name, entry in _section(raw, section, layer.source, seen):
            _add_entry(found, strays, layer.source, section, name, entry, seen)
    return found


def _imported_entries(layer: Layer, seen: _Problems) -> dict[str, Givens]:
    """The servers of another program. An error in its file is never fatal for ours."""
    found, strays = _Problems(), dict[str, Problem]()
    entries = _entries(layer, found, strays)
    seen += found.as_warnings()
    seen += (attrs.evolve(problem, fatal=False) for problem in strays.values())
    return entries


def _unknown_top(raw: Mapping[Any, Any], source: str) -> Iterable[Problem]:
    for key in raw:
        if key not in _TOP and not is_remark(str(key)):
            what = unknown(str(key), _OURS, "it is ignored")
            yield Problem(place(source, str(key)), what, fatal=False)


def _section(raw: Mapping[Any, Any], section: str, source: str, seen: _Problems) -> Iterable[tuple[Any, Any]]:
    servers = raw.get(section)
    if servers is None:
        return ()
    if not is_object(servers):
        what = f'must be an object like {{"name": {{"command": "…"}}}}, is {kind_of(servers)}'
        seen.append(Problem(place(source, section), what))
        return ()
    return servers.items()


def _add_entry(
    found: dict[str, Givens],
    strays: dict[str, Problem],
    source: str,
    section: str,
    name: Any,
    entry: Any,
    seen: _Problems,
) -> None:
    path = (section, str(name))
    if not isinstance(name, str) or not name.strip() or not is_whole(name):
        seen.append(
            Problem(place(source, section, name), "has no usable name: give it a non-empty one", fatal=False)
        )
    elif not is_object(entry):
        what = f'must be an object like {{"command": "…"}}, is {kind_of(entry)}'
        strays[name] = Problem(place(source, *path), what)
    elif name in found:
        what = f'is in "{_section_of(found[name])}" too, which is used; remove one of them'
        seen.append(Problem(place(source, *path), what, fatal=False))
    else:
        found[name] = givens(entry, source, path, seen.append) or _empty(source, path)


def _section_of(entry: Givens) -> str:
    return str(next(iter(entry.values())).path[0])


def _empty(source: str, path: tuple[str, ...]) -> Givens:
    """The place of an empty entry, for messages about it."""
    return {"": Given(None, source, path)}
