"""Records an open room on a tape.

It is told of each call when it ends, in the same step, and writes its line at once: so the tape of a killed process has
every call whose answer anybody saw. The file is only appended to, and is ours alone. What is large is written beside it
first, by a thread, and its line after that.

Secrets are cut out as from results that a model is shown, from arguments as well; and members whose names `redact`
lists, wherever they are. A disk that is full ends the recording with one note; calls go on.

Rejected: to collect lines and write them together. That is a little cheaper, and loses what came last, which is what
somebody looks for who has a crash on his tape.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ..actors.host import ASKED_FOR
from ..config.masking import redacted
from ..config.private_files import make_own_folder, open_own, refused
from ..protocol.address import Address
from ..protocol.errors import RemoteError, RpcRefusal, UsageError
from ..protocol.event_records import record_of
from ..protocol.events import Event, Kind
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.jsonrpc.terms import HANDSHAKE_VERSIONS
from ..protocol.version import VERSION as GREENROOM
from .lines import (
    LARGE,
    SUFFIX,
    VERSION,
    Asked,
    CallLine,
    Failure,
    Happened,
    Head,
    Large,
    Line,
    Listed,
    Notice,
    encoded,
)

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..actors.host import Declaration, Host, ServerRequest
    from ..actors.peer import Handshake, Listing
    from ..catalogue.entries import ServerEntry
    from ..config.model import Config
    from ..config.secrets import KnownSecrets

Steps = list[tuple[float, dict[str, Any]]]  # of progress, with their times
_EVENTS: Final = (Kind.TRANSITION, Kind.DECISION, Kind.NOTE)
_HIDDEN: Final = "[REDACTED]"
_EMPTY: Final = b"{}"


class Recorder:
    """A tape that is being recorded. `place`: a file whose name ends with `.tape`, or a folder that gets one for each
    room. `redact`: names of members that are not recorded. Opened before its room, and closed after it."""

    def __init__(self, place: str | os.PathLike[str], redact: Collection[str] = ()) -> None:
        self.place: Path = Path(os.path.abspath(place))
        self.path: Path | None = None  # of the file, once it is open
        self._redact = frozenset(redact)
        self._fd: int | None = None
        self._pid = 0
        self._secrets: KnownSecrets
        self._tell: Callable[[str], object]
        self._now: Callable[[], float]
        self._began = 0.0
        self._calls = 0
        self._orders: dict[Call, tuple[int, float]] = {}  # when it was sent last, and as which
        self._told: dict[Call, tuple[Steps, list[Asked]]] = {}
        self._writing = Lock()  # two write: the loop, and the thread for what is large
        self._problem: OSError | None = None  # that ended the tape, and was not told yet
        self._large: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None

    # ---- open and close ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the file. Raises `UsageError` when it cannot be written."""
        self._pid = os.getpid()
        is_file = self.place.suffix == SUFFIX
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())
        self.path = self.place if is_file else self.place / f"{stamp}-{token_hex(4)}{SUFFIX}"
        try:
            if not is_file:
                make_own_folder(self.place)
            self._fd = open_own(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL)
        except OSError as error:
            text = f"No tape can be recorded at {self.path}: {refused(error)}"
            raise UsageError(text) from None

    def begin(
        self, config: Config, secrets: KnownSecrets, now: Callable[[], float], tell: Callable[[str], object]
    ) -> None:
        """The room begins. `now`: its clock; `tell` gets what belongs into the log."""
        self._secrets, self._now, self._tell, self._began = secrets, now, tell, now()
        shown = redacted(config)
        kept = {key: shown[key] for key in ("mcpServers", "settings", "profiles") if key in shown}
        self._write(Head(VERSION, time.time(), GREENROOM, platform.python_version(), kept))

    def close(self) -> None:
        """End it: what is large is written first. Idempotent."""
        if os.getpid() != self._pid:
            return  # a forked copy
        if self._thread is not None:
            self._large.put(None)
            self._thread.join()
            self._thread = None
        with self._writing:
            self._end(None)
        self._tell_problem()

    # ---- what it is told --------------------------------------------------------------------------------------------

    def heard_event(self, event: Event) -> None:
        self._write(Happened(self._at(event.at), record_of(event)))

    kinds = _EVENTS

    def knew(self, entry: ServerEntry) -> None:
        """What is known of a server before it runs: tools are shown from that, too."""
        version = entry.protocol_version or HANDSHAKE_VERSIONS[-1]
        said = version, entry.capabilities, entry.server_info, entry.instructions
        self._list(Address(entry.server), 0, *said, entry, entry.prints or {})

    def listed(self, address: Address, incarnation: int, handshake: Handshake, listing: Listing) -> None:
        said = (
            handshake.protocol_version,
            handshake.capabilities,
            handshake.server_info,
            handshake.instructions,
        )
        self._list(address, incarnation, *said, listing, listing.prints)

    def _list(
        self,
        address: Address,
        incarnation: int,
        version: str,
        capabilities: Mapping[str, Any],
        info: Mapping[str, Any],
        instructions: str | None,
        lists: ServerEntry | Listing,
        prints: Mapping[str, str],
    ) -> None:
        def plain(items: Any) -> Any:
            return None if items is None else [dict(item) for item in items]

        line = Listed(
            self._at(self._now()),
            address.server,
            address.scope,
            incarnation,
            version,
            dict(capabilities),
            dict(info),
            instructions,
            plain(lists.tools),
            plain(lists.resources),
            plain(lists.templates),
            plain(lists.prompts),
            plain(lists.skills),
            dict(prints),
        )
        self._write_raw(self._clean(address.server, None, encoded(line)[:-1]) + b"\n")

    def sent(self, call: Call) -> None:
        """A call was sent, perhaps once more."""
        self._calls += 1
        self._orders[call] = self._calls, call.sent_at

    def progressed(self, call: Call, params: Mapping[str, Any]) -> None:
        self._about(call)[0].append((self._at(self._now()), dict(params)))

    def ended(self, call: Call, address: Address, incarnation: int) -> None:
        """A call has its outcome."""
        if self._problem is not None:
            self._tell_problem()
        server, session = address.server, call.client
        order, sent = self._orders.pop(call, (0, None))
        progress, asked = self._told.pop(call, None) or ([], [])
        params = self._clean(server, session, _EMPTY if call.params is None else encode_json(call.params))
        line = CallLine(
            call.number,
            order,
            self._at(call.accepted_at),
            self._at(self._now()),
            server,
            address.scope,
            incarnation,
            call.method,
            msgspec.Raw(params),
            call.outcome,
            call.reach.value,
            None if sent is None else self._at(sent),
            session,
            call.tool,
            progress=self._without_secrets(server, session, progress),
            asked=asked,
        )
        if call.error is not None:
            line.error = self._failure(server, session, call)
        if call.result is None:
            self._write(line)
        elif len(call.result) > LARGE:
            self._later(partial(self._write_large, line, server, session, call.result))
        else:
            line.result = msgspec.Raw(self._clean(server, session, call.result))
            self._write(line)

    def noticed(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        said = None if params is None else dict(params)
        line = Notice(self._at(self._now()), address.server, address.scope, method, said)
        self._write_raw(self._clean(address.server, None, encoded(line)[:-1]) + b"\n")

    def asked(self, request: ServerRequest, began: float, answer: object) -> None:
        """A server has asked its client something during a call, and got this answer, or this refusal."""
        if request.call is None or request.call.ended:
            return
        about = Asked(self._at(began), request.method, dict(request.params))
        if isinstance(answer, RpcRefusal):
            about.refusal = {"code": answer.rpc_code, "message": answer.message}
        elif isinstance(answer, Mapping):
            about.answer = dict(cast("Mapping[str, Any]", answer))
        raw = self._clean(request.server, request.call.client, msgspec.json.encode(about))
        self._about(request.call)[1].append(msgspec.json.decode(raw, type=Asked))

    # ---- how --------------------------------------------------------------------------------------------------------

    def _at(self, at: float) -> float:
        return at - self._began  # to round it takes longer than to write it

    def _about(self, call: Call) -> tuple[Steps, list[Asked]]:
        return self._told.setdefault(call, ([], []))

    def _failure(self, server: str, session: str | None, call: Call) -> Failure:
        error = call.error
        assert error is not None
        rpc: dict[str, Any] | None = None
        if isinstance(error, RemoteError):
            rpc = {"code": error.rpc_code, "message": error.rpc_message, "data": error.data}
        failure = Failure(error.code, error.message, rpc)
        raw = self._clean(server, session, encode_json(msgspec.to_builtins(failure)))
        return msgspec.json.decode(raw, type=Failure)

    def _without_secrets(self, server: str, session: str | None, progress: Steps) -> Steps:
        if not progress:
            return progress
        return msgspec.json.decode(self._clean(server, session, encode_json(progress)), type=Steps)

    def _clean(self, server: str, session: str | None, raw: bytes) -> bytes:
        """A JSON text without secrets, on one line."""
        raw = self._secrets.of_server(server, session).scrub(raw)
        if self._redact:
            raw = encode_json(_without(msgspec.json.decode(raw), self._redact))
        return raw.replace(b"\n", b" ") if b"\n" in raw else raw

    def _write_large(self, line: CallLine, server: str, session: str | None, result: bytes) -> None:
        raw = self._clean(server, session, result)
        name = hashlib.sha256(raw).hexdigest()
        assert self.path is not None
        folder = self.path.with_name(self.path.name + ".d")
        try:
            make_own_folder(folder)
            fd = open_own(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with open(fd, "wb") as file:
                file.write(raw)
        except OSError as error:
            with self._writing:
                self._end(error)
            return
        line.large = Large(name, len(raw))
        self._write(line)

    def _later(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="greenroom tape", daemon=True)
            self._thread.start()
        self._large.put(work)

    def _work(self) -> None:
        while (work := self._large.get()) is not None:
            work()

    def _write(self, line: Line) -> None:
        self._write_raw(encoded(line))

    def _write_raw(self, data: bytes) -> None:
        if os.getpid() != self._pid:
            return
        with self._writing:
            if self._fd is None:
                return
            try:
                if os.write(self._fd, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._end(error)

    def _end(self, problem: OSError | None) -> None:
        """Close the file. Holds the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
            self._problem = problem

    def _tell_problem(self) -> None:
        """Say that the tape has ended. In the loop, for the thread may not."""
        problem, self._problem = self._problem, None
        if problem is not None:
            self._tell(f"the tape {self.path} ends here: {refused(problem)} Calls go on.")


class RecordingHost:
    """A host whose answers, and the notifications that it hears, are recorded."""

    def __init__(self, host: Host, recorder: Recorder, now: Callable[[], float]) -> None:
        self._host = host
        self._recorder = recorder
        self._now = now

    def declaration(self, address: Address) -> Declaration:
        return self._host.declaration(address)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        if request.is_ours or request.method not in ASKED_FOR:
            return await self._host.answer(request)
        began = self._now()
        try:
            answer = await self._host.answer(request)
        except RpcRefusal as refusal:
            self._recorder.asked(request, began, refusal)
            raise
        self._recorder.asked(request, began, answer)
        return answer

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        self._recorder.noticed(address, method, params)
        self._host.heard(address, method, params)


def _without(value: Any, names: Collection[str]) -> Any:
    """The value without what stands under these names."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: _HIDDEN if key in names else _without(each, names) for key, each in members.items()}
    if isinstance(value, list):
        return [_without(each, names) for each in cast("list[Any]", value)]
    return value
