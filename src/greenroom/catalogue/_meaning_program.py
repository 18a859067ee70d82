"""The program of the child that finds tools by meaning for a room: `ToolVectors`, over lines of JSON-RPC.

It is told which model to load and where vectors are kept (`begin`), the texts of tools (`learn`), and queries
(`nearest`). It ends when its standard input does. Each of its two threads takes one processor at most: one answers, and
one makes vectors.
"""

from __future__ import annotations

import os
import sys
import threading
from array import array
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .tool_vectors import ToolVectors

_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_TURN: Final = 0.001  # seconds that the thread which makes vectors keeps the interpreter from a query


def main() -> None:
    import msgspec

    from ..protocol.jsonrpc.terms import INTERNAL_ERROR
    from .meaning_model import Unusable

    os.environ.update(dict.fromkeys(_THREADS, "1"))  # before numpy is imported
    sys.setswitchinterval(_TURN)
    child, out = _MeaningProgram(), sys.stdout.buffer
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line)
        if "id" not in request:
            continue
        try:
            answer = {"result": child.methods[request["method"]](**request["params"])}
        except Unusable as error:
            answer = {"error": {"code": INTERNAL_ERROR, "message": str(error)}}
        out.write(msgspec.json.encode({"jsonrpc": "2.0", "id": request["id"], **answer}) + b"\n")
        out.flush()
    child.keep()
    os._exit(0)  # the other thread may be in the middle of a vector


class _MeaningProgram:
    def __init__(self) -> None:
        self._meanings: ToolVectors | None = None
        self.methods: Final = {"begin": self._begin, "learn": self._learn, "nearest": self._nearest}

    def keep(self) -> None:
        if self._meanings is not None:
            self._meanings.save()

    def _begin(self, model: str | bool, place: str | None, max_age: float, **_: Any) -> dict[str, Any]:
        from .tool_vectors import opened

        self._meanings = opened(model, None if place is None else Path(place), max_age)
        threading.Thread(target=self._meanings.work, daemon=True).start()
        return {}

    def _learn(self, first: int, texts: list[str], **_: Any) -> dict[str, Any]:
        assert self._meanings is not None
        self._meanings.learn(first, texts)
        return {}

    def _nearest(self, query: str, most: int, **_: Any) -> dict[str, Any]:
        assert self._meanings is not None
        numbers = array("I", self._meanings.nearest(query, most))
        return {"numbers": b64encode(numbers.tobytes()).decode()}
