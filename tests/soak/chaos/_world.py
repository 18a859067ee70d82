"""Does what a fault says, and undoes it later.

It decides nothing and draws nothing. If there is no process to hit, nothing happens and the record says so. The end of
a lasting fault is an alarm of the loop, so a calm can ring all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Any, Final

import attrs

from . import _look as look
from ._faults import Burst, Fault, Kind
from ._gateway import Gateway
from ._ledger import Contradiction, Ledger
from ._loop import Loop
from ._server_file import HONEST, MOST_SLOTS, ServerFile

_DISK_AHEAD: Final = 4096  # bytes that the server's disk has ready


@attrs.define
class World:
    """Everything that one life consists of. `begun`: when the run began, for the times in the record."""

    loop: Loop
    server_file: ServerFile
    gateway: Gateway
    ledger: Ledger
    expose: str
    begun: float
    done: deque[str] = attrs.field(factory=lambda: deque(maxlen=25))
    counts: Counter[Kind] = attrs.field(factory=Counter[Kind])
    commands: Counter[str] = attrs.field(factory=Counter[str])
    attached: set[subprocess.Popen[bytes]] = attrs.field(factory=set[subprocess.Popen[bytes]])
    held: set[look.Target] = attrs.field(factory=set[look.Target])
    _disk: int = -1

    def open(self) -> None:
        """Make the disk of the server, and fill it."""
        if not self.server_file.disk.exists():
            os.mkfifo(self.server_file.disk)
        self._disk = os.open(self.server_file.disk, os.O_RDWR | os.O_NONBLOCK)
        self._feed_disk()

    def close(self) -> None:
        for command in tuple(self.attached):
            self._kill_attached(command)
        for target in tuple(self.held):
            self._let_go(target)
        os.close(self._disk)

    # ---- work ----------------------------------------------------------------------------------------------------

    def work(self, burst: Burst) -> None:
        """Send its calls at once, and perhaps cancel some later."""
        numbers = [self._call(burst, at) for at in range(burst.count)]
        if burst.cancel_after is not None:
            self.loop.after(burst.cancel_after, lambda: self._cancel(numbers[::2]))

    def _call(self, burst: Burst, at: int) -> int:
        if not burst.server:
            return self.ask(burst.tool)
        text = f"{len(self.ledger.requests)}-{at}-{'x' * burst.size}"
        arguments: dict[str, Any] = _ARGUMENTS.get(burst.tool, {"text": text})
        expects = text if burst.server in HONEST and burst.tool == "echo" else None
        name = f"{burst.server}_{burst.tool}"
        number = self.ledger.add(f"call of {name}", expects)
        params = {"name": name, "arguments": arguments}
        if self.expose == "proxy":
            params = {"name": "mcp", "arguments": {"tool": name, "args": arguments}}
        self.gateway.send({"id": number, "method": "tools/call", "params": params})
        return number

    def ask(self, method: str, params: dict[str, Any] | None = None) -> int:
        number = self.ledger.add(method)
        self.gateway.send({"id": number, "method": method, "params": params or {}})
        return number

    def _cancel(self, numbers: list[int]) -> None:
        for number in numbers:
            if self.ledger.cancel(number):
                params = {"requestId": number, "reason": "chaos"}
                self.gateway.send({"method": "notifications/cancelled", "params": params})

    # ---- faults --------------------------------------------------------------------------------------------------

    def do(self, fault: Fault) -> None:
        what = getattr(self, f"_{fault.kind.name.lower()}")(fault)
        self.counts[fault.kind] += 1
        at = time.monotonic() - self.begun
        self.done.append(f"{at:7.2f}s #{fault.number} {fault.kind.value}: {what or 'nobody was there'}")

    def _kill_child(self, fault: Fault) -> str | None:
        return self._hit(self._children(), fault, signal.SIGKILL)

    def _kill_grandchild(self, fault: Fault) -> str | None:
        return self._hit(self._grandchildren(), fault, signal.SIGKILL)

    def _stop_child(self, fault: Fault) -> str | None:
        return self._hit(self._children(), fault, signal.SIGSTOP)

    def _stop_grandchild(self, fault: Fault) -> str | None:
        return self._hit(self._grandchildren(), fault, signal.SIGSTOP)

    def _kill_guard(self, _fault: Fault) -> str | None:
        guard = look.guard_of(self.gateway.pid)
        if guard is not None:
            with suppress(ProcessLookupError):
                os.kill(guard, signal.SIGKILL)
        return None if guard is None else f"guard {guard}"

    def _stop_guard(self, fault: Fault) -> str | None:
        guard = look.guard_of(self.gateway.pid)
        if guard is None:
            return None
        try:
            self._stop(look.Target(guard), fault.seconds)
        except ProcessLookupError:  # it has gone since
            return None
        return f"guard {guard} for {fault.seconds:.2f}s"

    def _freeze_gateway(self, fault: Fault) -> str:
        seconds = min(fault.seconds, 1.0)
        self.gateway.process.send_signal(signal.SIGSTOP)
        self.loop.after(seconds, lambda: self.gateway.process.send_signal(signal.SIGCONT))
        return f"{seconds:.2f}s"

    def _stall_disk(self, fault: Fault) -> str:
        with suppress(BlockingIOError):
            while os.read(self._disk, _DISK_AHEAD):
                pass
        self.loop.after(fault.seconds, self._feed_disk)
        return f"{fault.seconds:.2f}s"

    def _deaf_client(self, fault: Fault) -> str:
        self.gateway.go_deaf()
        self.loop.after(fault.seconds, self.gateway.listen)
        return f"{fault.seconds:.2f}s"

    def _cancel_some(self, fault: Fault) -> str | None:
        some = list(self.ledger.open)[:: 1 + int(fault.pick * 5)]
        self._cancel(some)
        return f"{len(some)} calls" if some else None

    def _attach(self, fault: Fault) -> str | None:
        arguments = {"tool": f"{fault.server}_echo", "args": {"text": "attached"}}
        command = self.gateway.attach("mcp", arguments=arguments)
        if command is None:
            return None
        self.attached.add(command)
        self.loop.after(fault.seconds, lambda: self._kill_attached(command))
        return f"{fault.server}, killed after {fault.seconds:.2f}s"

    def _hang_up(self, fault: Fault) -> str:
        hang_up = self.gateway.command("reconnect", self._commanded, server=fault.server)
        self.loop.after(fault.seconds / 10, hang_up)
        return f"{fault.server}, for {fault.seconds / 10:.2f}s"

    def _reconnect(self, fault: Fault) -> str:
        self.gateway.command("reconnect", self._commanded, server=fault.server)
        return fault.server

    def _reconnect_all(self, _fault: Fault) -> str:
        self.gateway.command("reconnect", self._commanded)
        return "all"

    def _connect(self, fault: Fault) -> str:
        if self.expose == "proxy":
            self.ask("tools/call", {"name": "mcp", "arguments": {"connect": fault.server}})
        else:
            self.gateway.command("mcp", self._commanded, arguments={"connect": fault.server})
        return fault.server

    def _change(self, fault: Fault) -> str | None:
        return self._redefine(fault, env={**self._env(fault), "CHANGED": str(fault.number)})

    def _policy(self, fault: Fault) -> str | None:
        return self._redefine(fault, idleTimeout=round(fault.seconds / 60, 4))

    def _spoil(self, fault: Fault) -> str | None:
        return self._redefine(fault, command="/there/is/no/such/program")

    def _lifecycle(self, fault: Fault) -> str | None:
        kinds = ("lazy", "eager", "keep-alive")
        return self._redefine(fault, lifecycle=kinds[int(fault.pick * len(kinds))])

    def _resize(self, fault: Fault) -> str:
        self.server_file.slots = 3 + int(fault.pick * (MOST_SLOTS - 2))
        return self._rewrite(fault, f"{self.server_file.slots} slots")

    def _disable(self, fault: Fault) -> str | None:
        return self._redefine(fault, disabled=True)

    def _remove(self, fault: Fault) -> str | None:
        return self._rewrite(fault) if self.server_file.present.pop(fault.server, None) else None

    def _add(self, fault: Fault) -> str:
        self.server_file.present["extra"] = self.server_file.extra()
        return self._rewrite(fault, "extra")

    def _break(self, fault: Fault) -> str:
        self.server_file.write_broken()
        self.loop.after(fault.seconds, self.server_file.write)
        return f"{fault.seconds:.2f}s"

    def _restore(self, fault: Fault) -> str:
        self.server_file.restore()
        return self._rewrite(fault, "all")

    # ---- how -----------------------------------------------------------------------------------------------------

    def _children(self) -> list[int]:
        return sorted(look.children(self.gateway.pid) & look.marked(self.server_file.token))

    def _grandchildren(self) -> list[int]:
        return sorted(look.marked(self.server_file.token) - look.children(self.gateway.pid))

    def _hit(self, those: list[int], fault: Fault, number: int) -> str | None:
        target = look.hold(those[int(fault.pick * len(those))], self.server_file.token) if those else None
        if target is None:
            return None
        who = f"{target.pid} {look.incarnation(target.pid).partition(':')[2]}"
        if number != signal.SIGSTOP:
            target.send(number)
            target.close()
            return who
        self._stop(target, fault.seconds)
        return f"{who} for {fault.seconds:.2f}s"

    def _stop(self, target: look.Target, seconds: float) -> None:
        target.send(signal.SIGSTOP)
        self.held.add(target)
        self.loop.after(seconds, lambda: self._let_go(target))

    def _let_go(self, target: look.Target) -> None:
        if target in self.held:
            self.held.discard(target)
            target.send(signal.SIGCONT)
            target.close()

    def _kill_attached(self, command: subprocess.Popen[bytes]) -> None:
        self.attached.discard(command)
        command.kill()
        command.wait()

    def _commanded(self, answer: dict[str, Any] | None) -> None:
        what = (
            "no answer" if answer is None else "answered" if "result" in answer else answer["error"]["code"]
        )
        if what == "bug":
            raise Contradiction(f"a command met a bug: {answer}")
        self.commands[what] += 1

    def _feed_disk(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._disk, b"." * _DISK_AHEAD)

    def _env(self, fault: Fault) -> dict[str, str]:
        return self.server_file.present.get(fault.server, {}).get("env", {})

    def _redefine(self, fault: Fault, **changes: Any) -> str | None:
        if fault.server not in self.server_file.present:
            return None
        self.server_file.present[fault.server] = {**self.server_file.present[fault.server], **changes}
        return self._rewrite(fault)

    def _rewrite(self, fault: Fault, what: str | None = None) -> str:
        self.server_file.write(in_place=fault.pick < 0.5)
        return what or fault.server


_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "sleep": {"seconds": 0.3},
    "junk": {"text": "y" * 20_000},
    "divide": {"dividend": 6, "divisor": 2},
    "progress": {"steps": 5},
    "crash": {},
    "grow": {},
    "find": {},
    "now": {},
}
