"""`python -m greenroom.testing.servers.scripted`: a real process that goes wrong by a fault script.

    --script FILE|JSON   the script, as `FaultScript.to_json` writes it (default: nothing goes wrong)
    --log FILE           append what happens, one JSON object a line; needed by faults of a certain start

It is the executable counterpart of `FakeServer`: an honest stdio server of the handshake era whose one tool, `echo`,
says its arguments back, until its script says otherwise. One loop waits for its stdin and for a heap of what is due, so
a delayed answer delays no other. It uses the standard library only, for a child has to be up at once.

A process remembers nothing of the one before it, so starts are counted in the log, which says of each start `started`
(pid), `heard` (method, params) for each message, `fault` (number of the start, fault) for each that is played, and
`stopped` (how: "end of stdin", "SIGTERM", or the crash). Somebody else's SIGKILL leaves no line.

There is no session to expire over stdio, and a process does not know of what was not sent: a script with `expire` or
`crash_before` is refused. `FakeServer` plays them.
"""

from __future__ import annotations

import heapq
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn

from ...protocol.fault_plan import STEP_OF, FaultEntry, FaultPlan, perform, problem_with

Json = dict[str, Any]
METHOD_NOT_FOUND, INTERNAL_ERROR = -32601, -32603
INITIALIZE_RESULT: Json = {
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "scripted", "version": "1"},
}
CHUNK = 65_536
BEYOND = {
    "expire": "over stdio there is no session to expire",
    "crash_before": "a process does not know of what was not sent",
}
JUNK = b'hello, I am a banner\n\xff\xfe{"\n{"jsonrpc":"2.0","id":987654,"result":{}}\n'
FaultSteps = Generator[float, None, FaultEntry | None]
Continuation = Callable[[FaultEntry | None], None]


class ScriptLog:
    """What happened, one JSON object a line; shared by all starts of one server."""

    def __init__(self, path: str | None) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600) if path else None

    def say(self, event: str, **more: Any) -> None:
        if self._fd is not None:
            os.write(self._fd, json.dumps({"event": event, **more}).encode() + b"\n")

    def begin(self) -> int:
        """Say that we have started. Returns the number of this start: what was written before it is not ours."""
        self.say("started", pid=os.getpid())
        if self._fd is None:
            return 1
        own_end = os.lseek(
            self._fd, 0, os.SEEK_CUR
        )  # an appending write leaves it there, whoever wrote since
        return os.pread(self._fd, own_end, 0).count(b'{"event": "started"')


class ScriptPlayer:
    """One start of it. A `Player` of its script."""

    is_over = False  # when it is over, the process is

    def __init__(self, script: Sequence[FaultEntry], log: ScriptLog) -> None:
        self.log = log
        self.start: int = log.begin()
        self.plan: FaultPlan = FaultPlan(script, self.start)
        self.tools: Sequence[str] = ("echo",)
        self.due: list[tuple[float, int, Callable[[], None]]] = []  # a heap
        self.number: int = 0  # orders what is due at the same moment
        self.busy: int = 0  # requests it works on
        self.quiet: int = 0  # the number of this quiet time
        self.late: dict[Any, Json] = {}  # answers to give when the request is cancelled
        self.reads = False
        self.unread: bytes = b""

    # -- the loop --

    def run(self) -> NoReturn:
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._exit("SIGTERM", 0))
        self.play(self.plan.due("start"), self._begin)
        while True:
            wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else None
            if select.select([0] if self.reads else [], [], [], wait)[0]:
                self._read()
            while self.due and self.due[0][0] <= time.monotonic():
                heapq.heappop(self.due)[2]()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.due, (time.monotonic() + seconds, self.number, do))

    def play(self, faults: Sequence[FaultEntry], then: Continuation) -> None:
        """Play these, with the pauses they ask for, then tell how they ended."""
        self._go_on(perform(faults, self), then)

    def _go_on(self, playing: FaultSteps, then: Continuation) -> None:
        try:
            seconds = next(playing)
        except StopIteration as end:
            then(end.value)
        else:
            self.later(seconds, lambda: self._go_on(playing, then))

    def _begin(self, _decided: FaultEntry | None) -> None:
        self.reads = True
        self._rest()

    def _read(self) -> None:
        chunk = os.read(0, CHUNK)
        if not chunk:
            self._close()
        *lines, self.unread = (self.unread + chunk).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    # -- its end --

    def _close(self) -> None:
        """Its stdin has ended. Whoever closes slowly is not hurried by a SIGTERM."""
        self.reads: bool = False
        self.due.clear()
        if faults := self.plan.due("stop"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.play(faults, lambda _: self._exit("end of stdin", 0))

    def _exit(self, how: str, code: int) -> NoReturn:
        self.log.say("stopped", how=how)
        os._exit(code)

    # -- requests --

    def _take(self, message: Json) -> None:
        method = message.get("method")
        params: Json = message.get("params") or {}
        self.log.say("heard", method=method, params=params)
        if method == "notifications/cancelled":
            self._cancel(params.get("requestId"))
        elif method is not None and "id" in message:
            self.busy += 1
            self.quiet += 1
            step = STEP_OF.get(method)
            faults = self.plan.due(step, params.get("name")) if step else []
            self.play(faults, lambda decided: self._answer(message, decided))

    def _answer(self, message: Json, decided: FaultEntry | None) -> None:
        answer = {"id": message["id"], **self._result(message["method"], message.get("params") or {})}
        if decided is None:
            self.send(answer)
        elif decided.do == "answer_twice":
            self.send(answer)
            self.send(answer)
        elif decided.do == "answer_late":
            self.late[message["id"]] = answer
        elif decided.do == "refuse":
            code = INTERNAL_ERROR if decided.code is None else decided.code
            self.send({"id": message["id"], "error": {"code": code, "message": decided.text}})
        self.busy -= 1
        self._rest()

    def _result(self, method: str, params: Json) -> Json:
        match method:
            case "initialize":
                return {"result": {**INITIALIZE_RESULT, "protocolVersion": params.get("protocolVersion")}}
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
                return {"result": {"tools": tools}}
            case "tools/call":
                text = json.dumps(params.get("arguments") or {}, sort_keys=True)
                return {"result": {"content": [{"type": "text", "text": text}]}}
            case "ping":
                return {"result": {}}
            case _:
                return {"error": {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}}

    def _cancel(self, rpc_id: Any) -> None:
        if answer := self.late.pop(rpc_id, None):
            self.send(answer)

    def _rest(self) -> None:
        """Nothing is being answered: how long will that last?"""
        if self.busy or not self.reads:
            return
        self.quiet += 1
        for after in self.plan.idle_times():
            self.later(after, lambda quiet=self.quiet, after=after: self._idle(quiet, after))

    def _idle(self, quiet: int, after: float) -> None:
        if quiet == self.quiet:
            self.play(self.plan.due_idle(after), lambda _: None)

    # -- what it does wrong --

    def send(self, message: Json) -> None:
        self.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write(self, fd: int, data: bytes) -> None:
        while data:
            data = data[os.write(fd, data) :]

    def note_fault(self, fault: FaultEntry) -> None:
        self.log.say("fault", number=self.start, fault=fault.said())

    def talk_junk(self) -> None:
        self.write(1, JUNK)

    def flood(self, notifications: int, stderr: int) -> None:
        self.write(2, b"e" * (stderr - 1) + b"\n" if stderr else b"")
        for number in range(notifications):
            self.send({"method": "notifications/message", "params": {"level": "info", "data": number}})

    def change_tools(self, names: Sequence[str]) -> None:
        self.tools = names
        self.send({"method": "notifications/tools/list_changed"})

    def hang(self) -> NoReturn:
        """For ever: only a signal ends it."""
        while True:
            time.sleep(3600)

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> NoReturn:
        if last_words:
            self.write(2, last_words.encode() + b"\n")
        if signal_name is None:
            self._exit(f"exit code {exit_code}", exit_code)
        self.log.say("stopped", how=signal_name)
        end_by(signal.Signals[signal_name])

    def expire(self) -> None: ...  # such a script is refused


def end_by(number: signal.Signals) -> NoReturn:
    """Send it to ourselves, as a bug or a system short of memory would; no core is written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number is not signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(1)


def read_script(given: str, *, has_log: bool) -> list[FaultEntry]:
    """The script from JSON, or from the file of that name. Exits with code 2 when it cannot be played."""
    try:
        text = given if given.lstrip().startswith("[") else _text_of(given)
        faults: Any = json.loads(text)
    except (OSError, ValueError) as error:
        refuse(f"--script {given[:80]}: {error}")
    if not isinstance(faults, list):
        refuse('a fault script is an array, like [{"at": "call", "do": "crash"}]')
    return [_checked(number, fault, has_log) for number, fault in enumerate(faults, 1)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _checked(number: int, fault: Any, has_log: bool) -> FaultEntry:
    problem = problem_with(fault)
    if problem is None and fault["do"] in BEYOND:
        problem = f"{BEYOND[fault['do']]}: use FakeServer for that"
    if problem is None and fault.get("start") is not None and not has_log:
        problem = "starts are counted in the log: give --log FILE"
    if problem is not None:
        refuse(f"fault {number} of the script cannot be played: {problem}")
    return FaultEntry(**fault)


def refuse(why: str) -> NoReturn:
    print(f"scripted: {why}", file=sys.stderr)
    sys.exit(2)


def options(argv: Sequence[str]) -> Json:
    """`--script` and `--log`. Exits with code 2 for anything else."""
    given: Json = {}
    words = iter(argv)
    for word in words:
        if word not in ("--script", "--log"):
            refuse(f"unknown option {word}; it knows --script FILE|JSON and --log FILE")
        given[word] = next(words, "") or refuse(f"{word} needs a value")
    return given


def main() -> None:
    given = options(sys.argv[1:])
    log_path = given.get("--log")
    script = read_script(given.get("--script", "[]"), has_log=log_path is not None)
    ScriptPlayer(script, ScriptLog(log_path)).run()


if __name__ == "__main__":
    main()
