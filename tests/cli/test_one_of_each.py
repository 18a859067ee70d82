"""One of a thing is not spoken of as several."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.support.homes import home as home
from tests.support.homes import own_config

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path
from greenroom.cli.main import run
from greenroom.cli.top_command import summary
from greenroom.config.files import load_config
from greenroom.gateway.event_log import line_of
from greenroom.protocol.events import Lagged
from greenroom.supervisor.runtime import DrainReport


def test_a_server_with_one_tool(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config(home, json.dumps({"mcpServers": {"a": {"command": "a"}}}))
    keys = catalogue_keys(load_config(cwd=Path.cwd(), home=home, environ=os.environ))
    entry = ServerEntry("a", keys["a"], tools=({"name": "x"},), fetched_at=time.time())
    CatalogueFile(default_cache_path()).save([entry], time.time())
    for words in ([], ["status"], ["tools"], ["doctor"]):
        run(words)
        said = capsys.readouterr().out
        assert "1 tools" not in said, words
        assert "1 servers" not in said, words
        assert words == ["doctor"] or "1 tool" in said, words


def test_one_event_one_call_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert line_of(Lagged(missed=1)) == "1 event was dropped here"
    rows = [{"inFlight": 1, "queued": 0}]
    assert "1 call in flight" in summary({"servers": rows, "disabledCount": 0, "connectedCount": 1})
    assert str(DrainReport(1, 1, 0, 0, 0)).startswith("1 call accepted: ")
    events = tmp_path / "events"
    events.write_text("no event\n")
    assert run(["trace", str(events)]) == 0
    assert "1 line of" in capsys.readouterr().err
