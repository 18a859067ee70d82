"""A registry of servers, in which `mcp_provision` looks too, if one is configured.

It has the interface of the official registry (`GET /v0.1/servers`), which finds servers by a part of their name. So the
longest words of a request are looked for one by one, and what comes is ranked here, by MetaMCP's points: for each word,
10 for a name that is this word, else 5 for a name with it, and 2 for a description with it. These words are all that is
sent. Nothing is installed and nothing is started: a person has to add a server to the configuration.

What a registry says is written by strangers. It is bounded, it is shown without hidden characters and on one line each,
and a package or an address only if it looks like one. A registry that does not answer costs no more than its part of
the answer, which says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlencode

import anyio
import attrs
import msgspec

from ...actors import ExchangeFault, in_turns
from ...protocol.bounds import REGISTRY_BYTES
from ...protocol.large_json import LARGE, decoding
from ...protocol.plain_text import one_line
from ...protocol.search import asked_words

_ASKED: Final = 3  # words, each with a request
_PAGE: Final = 30  # servers that come for each
_SHOWN: Final = 5
_NAME: Final = 100  # characters
_DESCRIPTION: Final = 200

_PACKAGE: Final = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9._/-]{0,200}")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,60}")
_ADDRESS: Final = re.compile(r"https://[A-Za-z0-9.-]{1,200}(?::\d{1,5})?(?:/[A-Za-z0-9._~/-]{0,200})?")
_COMMANDS: Final = {
    "npm": "npx -y {package}@{version}",
    "pypi": "uvx {package}=={version}",
}


@attrs.frozen
class Offer:
    """A server of the registry. `start`: the command that starts it, or its address; empty if it has neither that we
    know."""

    name: str
    description: str
    start: str

    def points(self, words: Iterable[str]) -> int:
        name, described = self.name.rpartition("/")[2].lower(), self.description.lower()
        found = 0
        for word in words:
            found += 10 if name == word else 5 if word in name else 0
            found += 2 if word in described else 0
        return found


async def look_up(registry: str, words: str) -> str:
    """What the registry has for these words, as a text for a model."""
    asked = sorted(asked_words(words), key=len, reverse=True)
    if not asked:
        return ""
    offers: dict[str, Offer] = {}
    faults: list[str] = []
    async with anyio.create_task_group() as tasks:
        for word in asked[:_ASKED]:
            tasks.start_soon(partial(_ask, registry, word, offers, faults))
    ranked = sorted(offers.values(), key=lambda offer: (-offer.points(asked), offer.name))
    return _in_words(registry, ranked[:_SHOWN], faults)


async def _ask(registry: str, word: str, offers: dict[str, Offer], faults: list[str]) -> None:
    from ...actors import fetched

    query = urlencode({"search": word, "version": "latest", "limit": _PAGE})
    try:
        answer = await fetched(f"{registry.rstrip('/')}/v0.1/servers?{query}", REGISTRY_BYTES)
        said = await in_turns(decoding(answer)) if len(answer) >= LARGE else msgspec.json.decode(answer)
    except ExchangeFault as fault:
        faults.append(str(fault))
    except (ValueError, RecursionError):  # msgspec's errors and ours are of the first kind
        faults.append("what came is no JSON")
    else:
        for offer in offers_in(said):
            offers.setdefault(offer.name, offer)


def offers_in(said: Any) -> list[Offer]:
    """The servers in an answer of the registry; what does not look like one is left out."""
    found: list[Offer] = []
    for entry in [entry for answer in _objects([said]) for entry in _objects(answer.get("servers"))]:
        server = next(iter(_objects([entry.get("server")])), entry)
        name = _line(server.get("name"), _NAME)
        if name:
            found.append(Offer(name, _line(server.get("description"), _DESCRIPTION), _start_of(server)))
    return found


def _start_of(server: Mapping[str, Any]) -> str:
    for package in _objects(server.get("packages")):
        command = _COMMANDS.get(str(package.get("registryType")))
        name, version = package.get("identifier"), package.get("version")
        if command and _fits(_PACKAGE, name) and _fits(_VERSION, version):
            return command.format(package=name, version=version)
    for remote in _objects(server.get("remotes")):
        if _fits(_ADDRESS, remote.get("url")):
            return str(remote["url"])
    return ""


def _objects(given: Any) -> list[Mapping[str, Any]]:
    items = cast("list[Any]", given)[:_PAGE] if isinstance(given, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]


def _fits(form: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and form.fullmatch(text) is not None


def _line(text: object, most: int) -> str:
    """A text of theirs on one line."""
    return one_line(text, most) if isinstance(text, str) else ""


def _in_words(registry: str, offers: Sequence[Offer], faults: Sequence[str]) -> str:
    if not offers:
        why = f"it could not be asked: {faults[0]}" if faults else "it has none whose name fits"
        return f"Not configured, in the registry {registry}: {why}."
    lines = [f"Not configured, in the registry {registry} (its words; nothing was installed or started):"]
    for offer in offers:
        lines.append(f"- {offer.name}{': ' if offer.description else ''}{offer.description}")
        if offer.start:
            lines.append(f"  {offer.start}")
    lines.append("To use one, its owner adds it to the configuration. Ask them first.")
    return "\n".join(lines)
