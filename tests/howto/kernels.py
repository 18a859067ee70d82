"""Plays a page about notebooks in real kernels, as its reader would: `python -m tests.howto.kernels PAGE`.

* A block of `python` is a cell, and a block of `text` behind it is what the cell prints, compared in shape as in
  `tests/support/pages.py`. A cell that is shown to print nothing must not fail.
* `<!-- kernel: WHAT -->` is done where it stands: `another` starts one more, in which the next cells run; `restart` is
  what the button does; `kill` kills all of them; `interrupt the next` interrupts the cell that follows, once it runs;
  `servers: N` waits until N processes of our servers are there, in this home.

A program of its own, because the tests watch over what a process leaves open, and a client of kernels leaves much.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from jupyter_client.manager import start_new_kernel
from tests.support.pages import fits
from tests.support.patience import PATIENCE
from tests.support.servers_here import wait_for

_PART: Final = re.compile(
    r"^<!-- kernel: (?P<deed>.*?) -->$|^```(?P<language>python|text)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Notebook:
    def __init__(self) -> None:
        self._kernels: list[tuple[Any, Any]] = []
        self._is_to_be_interrupted = False
        self.do("another")

    def do(self, deed: str) -> None:
        match deed.split():
            case ["another"]:
                self._kernels.append(start_new_kernel())
            case ["restart"]:
                manager, client = self._kernels[-1]
                manager.restart_kernel()
                client.wait_for_ready(PATIENCE)
            case ["kill"]:
                for manager, _ in self._kernels:
                    manager.signal_kernel(signal.SIGKILL)
            case ["interrupt", *_]:
                self._is_to_be_interrupted = True
            case ["servers:", count]:
                wait_for(int(count))
            case _:
                raise ValueError(f"a kernel cannot do this: {deed}")

    def run(self, cell: str) -> tuple[bool, str]:
        """Whether it went well, and what it printed."""
        printed: list[str] = []

        def hear(message: Any) -> None:
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    printed.append(content["text"])
                case "execute_result":
                    printed.append(content["data"]["text/plain"])
                case "error":
                    printed.append(f"{content['ename']}: {content['evalue']}")
                case _:
                    pass

        manager, client = self._kernels[-1]
        if self._is_to_be_interrupted:
            threading.Timer(2.0, manager.interrupt_kernel).start()
            self._is_to_be_interrupted = False
        reply = client.execute_interactive(cell, output_hook=hear, timeout=PATIENCE)
        return reply["content"]["status"] == "ok", "".join(printed)

    def close(self) -> None:
        for manager, client in self._kernels:
            client.stop_channels()
            manager.shutdown_kernel(now=not manager.is_alive())


def play(page: str) -> None:
    notebook = Notebook()
    went_well, printed, line = True, "", 0
    try:
        for part in _PART.finditer(page):
            if part["language"] == "text":
                if fits(part["text"], printed) is None:
                    raise ValueError(f"line {line}: printed\n{printed}")
                went_well = True
                continue
            if not went_well:
                raise ValueError(f"line {line}: {printed}")
            line = page.count("\n", 0, part.start()) + 1
            if part["deed"]:
                notebook.do(part["deed"])
            else:
                went_well, printed = notebook.run(part["text"])
        if not went_well:
            raise ValueError(f"line {line}: {printed}")
    finally:
        notebook.close()
    wait_for(0)


if __name__ == "__main__":
    try:
        play(Path(sys.argv[1]).read_text(encoding="utf-8"))
    except ValueError as wrong:
        sys.exit(f"{sys.argv[1]}: {wrong}")
