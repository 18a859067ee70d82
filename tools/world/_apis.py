"""Serves public OpenAPI documents whole, each against a local API that is made from it.

That API knows nothing but the document: it finds the operations whose path and method fit a request, and answers with
their ids. Each operation of the document is called once, with what its schema asks for, and the answer must name it. So
what is tried is the way from a document to a tool and from arguments to a request; no request leaves this machine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.schema_sample import sample
from tests.support.staged_http import Stage, StagedHandler, served

from greenroom import Greenroom
from greenroom.openapi.document import read_document
from greenroom.protocol.errors import CallError

from ._table import ApiRow, RowResult, WorldRun
from .installing import install

_NAMED = 5  # operations that a problem names


def play_api(api: ApiRow, run: WorldRun) -> Iterator[RowResult]:
    file = install("apis", api.pins, "npm alone", [api.pins]) / "package" / api.file
    operations = read_document(file.read_bytes(), str(file)).operations
    stage = ApiStage()
    for name, each in operations.items():
        # Of a path's braces only the place counts.
        parts = re.split(r"\{[^{}]*\}", each.path.partition("#")[0].partition("?")[0])
        stage.paths.append((each.method, re.compile("/base" + "[^/]*".join(map(re.escape, parts))), name))
    with served(stage, ApiHandler, 0):
        entry = {"openapi": str(file), "baseUrl": f"http://127.0.0.1:{stage.port}/base", "maxInFlight": 32}
        listed, wrong = asyncio.run(_call_each(entry, run.folder / f"{api.name}.json"))
    counts = f"{len(operations):,}", f"{len(listed) - len(wrong):,}"
    result = RowResult([api.name, f"`{api.pins}`", *counts])
    if missing := operations.keys() - listed:
        result.problems.append(f"not listed: {_few(missing)}")
    if wrong:
        result.problems.append(f"{len(wrong)} not reached: {_few(wrong)}")
    yield result


async def _call_each(entry: dict[str, Any], cache: Path) -> tuple[set[str], list[str]]:
    """What is listed, and what of it does not reach its operation."""
    listed, wrong = set[str](), list[str]()
    config: Any = {"mcpServers": {"api": entry}, "settings": {"toolPrefix": "none", "nameLimit": 128}}
    async with Greenroom.open(config, cache_path=cache) as room:
        await room.connect("api")
        for tool in room.tools(server="api"):
            name, schema = tool.original, tool.input_schema or {}
            listed.add(name)
            try:
                result = await room.call(tool.name, sample(schema, schema.get("$defs", {})), server="api")
            except CallError as error:
                wrong.append(f"{name} ({error.code})")
                continue
            said: Any = result.structured or {}
            # An answer to HEAD has no body.
            is_head = tool.record["annotations"].get("readOnlyHint") and not said and not result.is_error
            if not is_head and name not in said.get("operations", ()):
                wrong.append(f"{name} ({result.text[:100]})")
    return listed, wrong


def _few(names: Any) -> str:
    return ", ".join(sorted(names)[:_NAMED])


class ApiStage(Stage):
    """`paths`: of each operation, its method, its path and its name."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[tuple[str, re.Pattern[str], str]] = []


class ApiHandler(StagedHandler):
    def _take(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        fits = [
            name
            for method, pattern, name in self.stage.paths
            if method == self.command and pattern.fullmatch(path)
        ]
        if self.command == "HEAD":
            self.say(200 if fits else 404)
        else:
            self.json({"operations": fits}, 200 if fits else 404)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_TRACE = do_QUERY = _take  # noqa: N815
