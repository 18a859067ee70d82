"""One client of the direct door: which resources it watches, and which streams it keeps open.

An older client subscribes by requests and gets plain notifications. A newer client keeps a
`subscriptions/listen` open, and its notifications carry that request's id. Either way each subscription is
one at the server, under the server's own URI, and the client sees the URI that it used.

This module also decides which server a URI is read from, because that depends on which server gave it to this
client (`Links`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import msgspec
from msgspec.structs import replace

from ...catalogue.namespace import ResourceEntry, unqualified
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import LINKS, LINKS_AT_ONCE
from ...protocol.errors import GreenroomError
from ..jobs import Job, acknowledged
from ..message_origin import without_ours
from . import direct_results as answers

if TYPE_CHECKING:
    from ...supervisor.port import RoomPort
    from ..endpoint import ClientSession


_FLAGS: Final = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
}
_MOST_EARLY: Final = 256  # parts of a resource: more cannot change between two turns of the loop


class _PendingSubscription(msgspec.Struct, eq=False):
    """A subscription of which its client has not been told yet. A server may report a change right behind its own
    answer; the client is told of it right behind ours. `early`: the last report of each resource."""

    places: list[ResourceEntry] = msgspec.field(default_factory=list[ResourceEntry])
    early: dict[tuple[str, str], Mapping[str, Any]] = msgspec.field(
        default_factory=dict[tuple[str, str], Mapping[str, Any]]
    )

    def take(self, server: str, uri: str, params: Mapping[str, Any]) -> None:
        if len(self.early) < _MOST_EARLY and any(_covers(place, server, uri) for place in self.places):
            self.early[server, uri] = params


class _ListenStream(msgspec.Struct, frozen=True, eq=False):
    """One open `subscriptions/listen`."""

    meta: Mapping[str, Any]
    flags: frozenset[str]
    places: tuple[ResourceEntry, ...]


class DirectClient:
    def __init__(self, room: RoomPort, client: ClientSession) -> None:
        self._room = room
        self._client = client
        self._watched: dict[str, ResourceEntry] = {}  # by the URI the client used
        self._streams: list[_ListenStream] = []
        self._begun: list[_PendingSubscription] = []
        self.links: Links = Links()

    def locate(self, uri: str) -> ResourceEntry:
        """The server and URI to read `uri` from: the server that lists it, else the one that gave it to this
        client, else one whose template matches.

        Raises `UnknownResource`, `AmbiguousTool`.
        """
        index = self._room.catalogue.index
        giver = self.links.giver(uri)
        if giver is None or giver not in index.servers or index.lists_resource(uri):
            return self._room.catalogue.locate(uri)
        return ResourceEntry(uri, giver, uri, {})

    # ---- notifications to the client -------------------------------------------------------------------------

    def tell_change(self, method: str) -> None:
        """Tell the client that one of its lists has changed."""
        if self._client.initialized:
            self._client.tell(method)
        for stream in self._streams:
            if _FLAGS[method] in stream.flags:
                self._client.tell(method, {"_meta": stream.meta})

    def tell_update(self, server: str, params: Mapping[str, Any]) -> None:
        """A resource of `server` has changed: tell the client if it watches the resource, or one that
        contains it."""
        uri = params.get("uri")
        if not isinstance(uri, str):
            return
        for place in self._watched.values():
            self._tell(place, server, uri, params)
        for stream in self._streams:
            for place in stream.places:
                self._tell(place, server, uri, params, stream.meta)
        for begun in self._begun:
            begun.take(server, uri, params)

    def _tell(
        self,
        place: ResourceEntry,
        server: str,
        uri: str,
        params: Mapping[str, Any],
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if _covers(place, server, uri):
            self.links.add(server, uri)
            more = {"_meta": {**_meta(params), **meta}} if meta is not None else {}
            self._client.tell("notifications/resources/updated", {**_under(place, params), **more})

    # ---- its requests ----------------------------------------------------------------------------------------

    async def subscribe(self, job: Job, uri: str) -> None:
        early: Mapping[tuple[str, str], Mapping[str, Any]] = {}
        try:
            if uri not in self._watched:
                place = self.locate(uri)
                with self._begin() as begun:
                    begun.places.append(place)
                    await self._room.resources.watch(place)
                if uri in self._watched:  # the client asked twice at once
                    self._room.resources.unwatch(place)
                else:
                    early = begun.early
                self._watched[uri] = place
        except GreenroomError as error:
            answers.refuse(job, error)
        else:
            job.answer({})
            for (server, part), params in early.items():
                self._tell(self._watched[uri], server, part, params)

    @contextmanager
    def _begin(self) -> Generator[_PendingSubscription]:
        begun = _PendingSubscription()
        self._begun.append(begun)
        try:
            yield begun
        finally:
            self._begun.remove(begun)

    def unsubscribe(self, job: Job, uri: str) -> None:
        place = self._watched.pop(uri, None)
        if place is not None:
            self._room.resources.unwatch(place)
        job.answer({})

    async def listen(self, job: Job, wanted: Mapping[str, Any]) -> None:
        """Keep a stream open until the client ends it. Resources that cannot be watched are missing in the
        acknowledgement."""
        meta = job.subscription
        flags = frozenset(flag for flag in _FLAGS.values() if wanted.get(flag) is True)
        uris: Any = wanted.get("resourceSubscriptions")
        places: list[ResourceEntry] = []
        try:
            with self._begin() as begun:
                for uri in cast("list[object]", uris) if isinstance(uris, list) else ():
                    await self._watch(uri, places, begun)
            stream = _ListenStream(meta, flags, tuple(places))
            self._streams.append(stream)
            try:
                said: dict[str, Any] = dict.fromkeys(sorted(flags), True)
                if places:
                    said["resourceSubscriptions"] = [place.uri for place in places]
                async with acknowledged(job, said):
                    for (server, part), params in begun.early.items():
                        for place in places:
                            self._tell(place, server, part, params, meta)
                    await anyio.sleep_forever()
            finally:
                self._streams.remove(stream)
        finally:
            for place in places:
                self._room.resources.unwatch(place)

    async def _watch(self, uri: object, places: list[ResourceEntry], begun: _PendingSubscription) -> None:
        try:
            place = self.locate(str(uri))
            begun.places.append(place)
            await self._room.resources.watch(place)
        except GreenroomError:
            return  # it is missing in the acknowledgement
        places.append(replace(place, uri=str(uri)))

    def leave(self) -> None:
        watched, self._watched = self._watched, {}
        for place in watched.values():
            self._room.resources.unwatch(place)


class DirectClients(dict["ClientSession", DirectClient]):
    """All clients of the door."""

    def of(self, client: ClientSession, room: RoomPort) -> DirectClient:
        """The object for this client, which sees `room`. It is made here if the client's first request is not the
        handshake."""
        if client not in self:
            self[client] = DirectClient(room, client)
        return self[client]

    def tell_change(self, method: str) -> None:
        for direct_client in tuple(self.values()):
            direct_client.tell_change(method)

    def learn_links(self, client: ClientSession, server: str, uris: Iterable[str]) -> None:
        direct_client = self.get(client)
        if direct_client is not None:  # otherwise it has disconnected
            direct_client.links.learn(server, uris)


def _covers(place: ResourceEntry, server: str, uri: str) -> bool:
    return place.server == server and (
        uri == place.original or uri.startswith(place.original.rstrip("/") + "/")
    )


def _under(place: ResourceEntry, params: Mapping[str, Any]) -> dict[str, Any]:
    """The update with the URI that the client knows. A part of the resource keeps its own URI."""
    told = {key: value for key, value in params.items() if key != "_meta"}
    if params["uri"] == place.original:
        told["uri"] = place.uri
    meta = _meta(params)
    return {**told, "_meta": meta} if meta else told


def _meta(params: Mapping[str, Any]) -> dict[str, Any]:
    meta: Mapping[str, Any] = without_ours(params).get("_meta") or {}
    return {key: value for key, value in meta.items() if not key.startswith(rpc.META)}


# ---- Remembers which server gave a client which URI -----------------------------------------------------------------
#
# Servers point to resources that they never list: by a link in a tool's result, an embedded resource, a part of what
# was read, or an update. No list and no template says which server has such a resource. So the server that gave the
# URI is remembered, for that client. A resource that a server lists is read from that server, whichever other server
# links to it. When two servers give the same URI, the later one counts, because the client saw that one last. Our
# qualified spelling names its server, so no other server can claim it. The memory is bounded: the oldest entries are
# dropped first.

_LONGEST: Final = 4096  # characters of a URI


class _Contents(msgspec.Struct):
    uri: Any = None


class _Block(msgspec.Struct):
    uri: Any = None
    resource: _Contents | None = None


class _Message(msgspec.Struct):
    content: _Block | list[_Block] | None = None


class _Result(msgspec.Struct):
    content: list[_Block] = []
    messages: list[_Message] = []
    contents: list[_Contents] = []

    def uris(self) -> Iterator[Any]:
        blocks = list(self.content)
        for message in self.messages:
            said = message.content
            blocks += said if isinstance(said, list) else [said] if said is not None else []
        for block in blocks:
            yield block.uri
            if block.resource is not None:
                yield block.resource.uri
        for contents in self.contents:
            yield contents.uri


_result: Final = msgspec.json.Decoder(_Result)
LINK: Final = b'"resource'  # a tool's result that holds a link or an embedded resource has this in it


class Links:
    def __init__(self) -> None:
        self._givers: OrderedDict[str, str] = OrderedDict()

    def learn(self, server: str, uris: Iterable[str]) -> None:
        """Remember the URIs in a result of `server`."""
        for uri in uris:
            self.add(server, uri)

    def add(self, server: str, uri: object) -> None:
        if isinstance(uri, str) and 0 < len(uri) <= _LONGEST and unqualified(uri) is None:
            self._givers[uri] = server
            self._givers.move_to_end(uri)
            if len(self._givers) > LINKS:
                self._givers.popitem(last=False)

    def giver(self, uri: str) -> str | None:
        return self._givers.get(uri)


def uris_in(result: bytes) -> list[Any]:
    """The URIs that a result points to, as many as are remembered. A result of another shape has none."""
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return list(islice(_result.decode(result).uris(), LINKS_AT_ONCE))
    return []
