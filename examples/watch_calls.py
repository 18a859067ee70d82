"""Count the calls of each principal, and write them to a database: a watcher of a room."""

import sqlite3
import sys

import anyio

from greenroom import CallView, Greenroom, Watcher

clock = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}


class CallCounts(Watcher):
    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.execute(
            "create table calls (principal text, tool text, outcome text, reach text, seconds real)"
        )

    def ended(self, call: CallView) -> None:
        who, seconds = call.subject or call.session, (call.ended_at or 0) - call.began_at
        row = (who, call.tool, call.outcome, call.reach.value, seconds)
        self.database.execute("insert into calls values (?, ?, ?, ?, ?)", row)


async def main() -> None:
    database = sqlite3.connect(":memory:")
    room = Greenroom.open({"mcpServers": {"clock": clock}}, watchers=[CallCounts(database)])
    async with room, room.session("alice") as alice:
        await alice.call("clock_now")
        await alice.call("clock_now", {"utc_offset": 1})
    for row in database.execute("select principal, tool, outcome, count(*) from calls group by 1, 2, 3"):
        print(*row)


anyio.run(main)
