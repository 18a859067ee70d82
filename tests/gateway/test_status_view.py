"""What a status says of servers that the configuration does not have any more."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.support.forked import greenroom_in
from tests.support.gateway import faulty, logged_pids, serve
from tests.support.patience import until


def test_a_server_that_was_removed_is_shown_until_its_process_has_ended(tmp_path: Path) -> None:
    """Its process ran on, with a call in flight, and no view showed it."""
    kept, removed = faulty(tmp_path, "kept"), faulty(tmp_path, "removed")

    def shown() -> dict[str, tuple[str, int]]:
        servers = json.loads(greenroom_in(tmp_path, "status", "--json").stdout)["servers"]
        return {row["name"]: (row["status"], row["inFlight"]) for row in servers}

    with serve(tmp_path, {"kept": kept, "removed": removed}, drainTimeoutMs=60_000) as gateway:
        gateway.initialize()
        gateway.start_mcp(tool="removed_sleep", args={"seconds": 600})
        assert until(lambda: shown()["removed"] == ("connected", 1))
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"kept": kept}}))
        assert until(lambda: shown()["removed"] == ("draining", 1))
        os.kill(min(logged_pids(tmp_path)), signal.SIGKILL)
        assert until(lambda: "removed" not in shown())
        gateway.end()
