"""Tools as the configuration wants them shown: renamed, hidden, described and filled in otherwise (`toolOverrides`).

A server's record of a tool stays as the server sent it, in the catalogue and on disk. What is made of it here is shown
at every door in its place: in lists, search and descriptions, and to programs. A call goes the other way: `own`
turns the arguments into those of the server, and `told` says a server's error in the names that the caller knows.

Nothing is guessed. A parameter that is hidden, or that has another name here, is refused under its old name, so a
caller can never set what was fixed for it. An override that does not fit the tool's schema hides the tool until that
is mended, because half of it may be worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..protocol.errors import UsageError
from ..protocol.json_values import array_or_empty, is_array, is_object, object_or_empty
from .entries import Raw

if TYPE_CHECKING:
    from .hidden_characters import OriginalSpelling


_ABSENT: Final = object()


def _no_parameters() -> Mapping[str, ParameterOverride]:
    return {}


class ParameterOverride(msgspec.Struct, frozen=True):
    """`default` is what the server gets when the caller gives nothing; any JSON value, also null. `null_is_nothing`:
    a caller who gives null has given nothing."""

    rename: str | None = None
    hide: bool = False
    description: str | None = None
    default: Any = _ABSENT
    null_is_nothing: bool = False

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> ParameterOverride:
        """The override that a checked entry of `params` says."""
        return cls(**{_ATTRIBUTES.get(key, key): value for key, value in said.items()})

    @property
    def has_default(self) -> bool:
        return self.default is not _ABSENT

    def over(self, weaker: ParameterOverride) -> ParameterOverride:
        """This override, and what the weaker one says besides."""
        return ParameterOverride(
            self.rename or weaker.rename,
            self.hide or weaker.hide,
            weaker.description if self.description is None else self.description,
            self.default if self.has_default else weaker.default,
            self.null_is_nothing or weaker.null_is_nothing,
        )


class ToolOverride(msgspec.Struct, frozen=True, dict=True):
    """The changes of one tool, and of its parameters by their own names."""

    rename: str | None = None
    hide: bool = False
    description: str | None = None
    parameters: Mapping[str, ParameterOverride] = msgspec.field(default_factory=_no_parameters)
    spelled: OriginalSpelling | None = None  # the server uses hidden characters, which are not shown

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> ToolOverride:
        """The override that a checked entry of `toolOverrides` says."""
        params = {name: ParameterOverride.of(each) for name, each in said.get("params", {}).items()}
        rest = {key: value for key, value in said.items() if key != "params"}
        return cls(**rest, parameters=params)

    def under(self, stronger: ToolOverride | None) -> ToolOverride:
        """Both overrides in one. Where both say something, `stronger` counts."""
        if stronger is None:
            return self
        parameters = dict(self.parameters)
        for name, each in stronger.parameters.items():
            parameters[name] = each.over(parameters[name]) if name in parameters else each
        return ToolOverride(
            stronger.rename or self.rename,
            stronger.hide or self.hide,
            self.description if stronger.description is None else stronger.description,
            parameters,
        )

    # ---- what is shown ----------------------------------------------------------------------------------------------

    def shown(self, record: Raw) -> Raw:
        """The record as it is shown; the name is the caller's to change."""
        changed = dict(record)
        if self.description is not None:
            changed["description"] = self.description
        if self.parameters:
            changed["inputSchema"] = self._schema(object_or_empty(record.get("inputSchema")))
        return changed

    def faults(self, record: Raw) -> list[str]:
        """Why this does not fit the tool, in words; empty if it does."""
        schema = object_or_empty(record.get("inputSchema"))
        known = object_or_empty(schema.get("properties"))
        found: list[str] = []
        for name, each in self.parameters.items():
            if name not in known:
                has = ", ".join(map(str, known)) or "none"
                found.append(f'has no parameter "{name}" (it has: {has})')
            elif each.has_default and not _fits(each.default, object_or_empty(known[name])):
                found.append(f'the default of "{name}" does not fit its schema')
            elif each.hide and not each.has_default and name in _required(schema):
                found.append(f'"{name}" is required, so hiding it needs a default')
        names = [self._name(name) for name in known if not self._hides(name)]
        for twice in sorted({name for name in names if names.count(name) > 1}):
            found.append(f'two parameters would be called "{twice}"')
        return found

    def _schema(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        known = object_or_empty(schema.get("properties"))
        properties = {
            self._name(name): self._property(name, value)
            for name, value in known.items()
            if not self._hides(name)
        }
        changed = {**schema, "properties": properties}
        if "required" in schema:
            changed["required"] = [
                self._name(name)
                for name in _required(schema)
                if not self._hides(name)
                and not (name in self.parameters and self.parameters[name].has_default)
            ]
        return changed

    def _property(self, name: str, value: Any) -> Any:
        each = self.parameters.get(name)
        if each is None or not is_object(value):
            return value
        said: dict[str, Any] = dict(value)
        if each.description is not None:
            said["description"] = each.description
        if each.has_default:
            said["default"] = each.default
        return said

    def _name(self, own: str) -> str:
        each = self.parameters.get(own)
        return own if each is None or each.rename is None else each.rename

    def _hides(self, own: str) -> bool:
        each = self.parameters.get(own)
        return each is not None and each.hide

    # ---- calls ------------------------------------------------------------------------------------------------------

    def own(self, arguments: Mapping[str, Any] | None, server: str) -> Mapping[str, Any]:
        """The server's arguments for those of a caller, with defaults. Values are not looked at.

        Raises `UsageError` (code `invalid_args`) for a parameter that is hidden, or that has another name here.
        """
        found: dict[str, Any] = {}
        for name, value in (arguments or {}).items():
            if name in self._renamed:
                found[self._renamed[name]] = value
            elif name in self.parameters and self._hides(name):
                raise _refused(f'Unknown parameter "{name}".', server)
            elif name in self.parameters and self._name(name) != name:
                raise _refused(f'Unknown parameter "{name}". It is called "{self._name(name)}".', server)
            else:
                found[name] = value
        for name, each in self.parameters.items():
            given = name in found and not (each.null_is_nothing and found[name] is None)
            if each.has_default and not given:
                found[name] = each.default
        return found if self.spelled is None else self.spelled.own(found)

    @cached_property
    def _renamed(self) -> Mapping[str, str]:
        return {each.rename: own for own, each in self.parameters.items() if each.rename and not each.hide}

    def told(self, text: str, original: str) -> str:
        """A server's error text with the names that are shown: of the tool (`original`: its own name) and of its
        parameters."""
        names = {name: each.rename for name, each in self.parameters.items() if each.rename and not each.hide}
        if self.rename:
            names[original] = self.rename
        if not names:
            return text
        longest = sorted(names, key=len, reverse=True)
        words = "|".join(re.escape(name) for name in longest)
        return re.sub(rf"(?<![\w-])(?:{words})(?![\w-])", lambda found: str(names[found[0]]), text)


def _refused(text: str, server: str) -> UsageError:
    return UsageError(text, code="invalid_args", server=server)


def _required(schema: Mapping[str, Any]) -> list[str]:
    return [each for each in array_or_empty(schema.get("required")) if isinstance(each, str)]


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether `type`, `enum` and `const` allow a value. The server checks the rest."""
    said = schema.get("type")
    names = said if is_array(said) else [] if said is None else [said]
    kinds = [_KINDS[name] for name in names if isinstance(name, str) and name in _KINDS]
    if kinds and not any(
        isinstance(value, kind) and (bool in kind or not isinstance(value, bool)) for kind in kinds
    ):
        return False
    allowed = schema.get("enum")
    if is_array(allowed) and value not in allowed:
        return False
    return "const" not in schema or schema["const"] == value


_ATTRIBUTES: Final = {"nullIsNothing": "null_is_nothing"}  # the other keys are called the same


def overrides_of(
    said: Mapping[str, Mapping[str, Any]], over: Mapping[str, ToolOverride] | None = None
) -> Mapping[str, ToolOverride]:
    """The overrides of a definition, by the server's own names. `over`: weaker overrides below them."""
    found = dict(over or {})
    for tool, each in said.items():
        more = ToolOverride.of(each)
        found[tool] = found[tool].under(more) if tool in found else more
    return found
