"""The `mcp` tool finds tools by meaning, and pages of them, where the setting is on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from tests.support import in_real_time
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room, teach
from tests.support.tiny_model import write_model

from greenroom import SearchTool
from greenroom.testing.fake_servers import FakeServer, tool

TOOLS = (tool("alpha", "Search files."), tool("beta", "Delete a file."))


@in_real_time
async def test_a_search_that_no_word_matches_lists_what_is_near(tmp_path: Path) -> None:
    async with open_room({"s": FakeServer()}, semanticSearch=str(write_model(tmp_path))) as room:
        await teach(room, "s", TOOLS)
        mcp = SearchTool(room)

        async def text(**arguments: Any) -> str:
            return (await mcp.run(arguments)).text

        with anyio.fail_after(PATIENCE):
            while "s_alpha" not in await text(search="xyzzy"):
                await anyio.sleep(0.01)
        assert "s_beta" in await text(search="xyzzy")
        assert "offset: 1" in await text(search="xyzzy", limit=1)
        assert "s_alpha" not in await text(search="xyzzy", regex=True)
        assert (await text(search="beta")).index("s_beta") < (await text(search="beta")).index("s_alpha")
