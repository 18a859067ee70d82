from typing import Any

import verifiers.v1 as vf

from greenroom.adapters.verifiers import RoomConfig, RoomState, RoomToolset, must_be_whole


class RoomTask(vf.Task[vf.TaskData, RoomState]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[Any]:
        return [RoomToolset(RoomConfig(servers="mcp.json"))]

    async def finalize(self, trace: Any, runtime: vf.Runtime) -> None:
        must_be_whole(trace.state)
