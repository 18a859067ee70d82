"""The doors to the outside: the `mcp` tool, the MCP endpoint, the stdio door, the control socket, the command line.

* `_mcp_tool`    the one tool a client sees: its modes, texts and error codes
* `_exposure`    what a door shows and who carries out requests: `proxy`, one tool
* `_direct`      the same: what the servers have, by name
* `_endpoint`    one handler of the gateway's MCP methods, for every door
* `_methods`     which method exists in which era
* `_answers`     what a client has asked of us, and its answers
* `_client_requests`  what we have asked of a client
* `_stdio_door`  the server end of stdio
* `_control`     the socket by which commands reach a running gateway; `_control_client`, their end of it
* `_serve`       `greenroom serve`: a room, its doors and its log
* `_cli`         the command line

Nothing is imported here: each door is paid for by whoever opens it.
"""
