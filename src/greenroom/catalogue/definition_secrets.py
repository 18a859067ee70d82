"""What a server says of itself, without the credentials that it was given.

It is asked where a server's words come in, before they are pinned, kept on disk, indexed or shown. So there is one
place for every kind of definition and every exposure, and a catalogue that was read from disk has none either, although
the credentials are not known yet then. What only looks like a credential stays: a definition may have to say how a
token looks.

A definition must work without them. So a common word (`is_common`), such as a password `object`, is removed from what
people read, and stays in what programs read. A credential in a name or a URI cannot be removed at all, for nothing
could be asked for by what is left. Such an item is of no use (`names_credential`).
"""

from __future__ import annotations

from typing import Any, Final

from ..config.scrubbing import Secrets
from ..protocol.json_values import array_or_empty, is_array, is_object
from ..protocol.jsonrpc import encoding
from .entries import Raw

_PROSE: Final = frozenset({"description", "title", "instructions"})


def without_credentials(secrets: Secrets, record: Raw) -> Raw:
    """The definition without these secrets; the same object if it has none of them."""
    if not secrets.known_in(encoding.encode(record)):
        return record
    found = _without(secrets, record, "")
    return record if found == record else found


def names_credential(record: Raw, shown: Raw) -> bool:
    """Whether `shown` lacks something by which the item, or a part of it, is asked for. `record`: as it came."""
    return _names_in(record) != _names_in(shown)


def _without(secrets: Secrets, value: Any, member: str) -> Any:
    if isinstance(value, str):
        return secrets.without_known(value, also_common=member in _PROSE or " " in value)
    if is_object(value):
        return {
            secrets.without_known(str(name)): _without(secrets, each, name) for name, each in value.items()
        }
    if is_array(value):
        return [_without(secrets, each, member) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        said = str(value)
        found = secrets.without_known(said)
        return value if found == said else found
    return value


def _names_in(record: Raw) -> list[Any]:
    own = [record.get(key) for key in ("name", "uri", "uriTemplate")]
    parts = [(each.get("name"), each.get("uri")) for each in _objects(record, "arguments", "resources")]
    return [*own, *parts]


def _objects(record: Raw, *keys: str) -> list[Raw]:
    return [each for key in keys for each in array_or_empty(record.get(key)) if is_object(each)]
