"""The doors to the outside: the `mcp` tool, the MCP endpoint, the stdio door, the control socket, the command
line.

* `_mcp_tool`    the one tool a client sees: its modes, texts and error codes
* `_exposure`    what a door shows and what carries out requests; here `proxy`, which shows one tool
* `_direct`      another exposure: what the servers have, by name
* `_meta`        and another: four tools in place of the one
* `_endpoint`    one handler of the gateway's MCP methods, for every door
* `_methods`     which method exists in which era
* `_answers`     the requests of a client, and their answers
* `_client_requests`  our requests to a client
* `_stdio_door`  the server end of stdio
* `_control`     the socket by which commands reach a running gateway; `_control_client` is the commands' end
  of it
* `_serve`       `greenroom serve`: a room, its doors and its log
* `_attach`      `greenroom attach`: joins its client to the background room, and waits; `_background_start` starts
  the room, `_background_place` says where it is, `_background_wire` what the two say to each other
* `_background_room`  the background room; `_background_doorway` takes its clients, `_background_door` is the door of
  one of them, and `_background_ledger` what survives the room
* `_cli`         the command line

Nothing is imported here, so only what is used is loaded.
"""
