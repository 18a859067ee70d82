"""What clients meet: the endpoint of the gateway, what it shows them, and the doors they come in by.

Other rooms may import:

* `control_methods`: what commands ask a running gateway: status, tools, calls, approvals, refresh
* `doors.attach_client`: joins a client to the background gateway, and knows what it has open
* `doors.attach_protocol`: what an attaching process and the background gateway say to each other
* `doors.background_gateway`: where the background gateway of a configuration is, and how exactly one is started
* `doors.control_client`: a command's end of the control socket
* `doors.control_protocol`: requests on the control socket, and where the socket is
* `doors.http_auth`: who may use the door: hosts, origins, bearer tokens, OAuth
* `doors.door_connection`: the bytes of one connection of the HTTP door; what a door is to it
* `doors.http_request`: one HTTP request, its body and its answer
* `doors.http_server`: the HTTP server; a socket that listens
* `doors.link_door`: links: another Greenroom has us carry out the calls of a server
* `event_log`: the event stream as log lines
* `event_loop`: the event loop of a `serve` process
* `explain`: why a server is as it is, in sentences
* `exposures.mcp_tool`: carries out the requests to the `mcp` tool
* `exposures.meta`: the exposure `meta`: four tools as MetaMCP has them; the registry of servers
* `exposures.output_files`: files for what does not fit an answer
* `exposures.query_modes`: the modes of the `mcp` tool that only look; search patterns that cannot hang
* `exposures.tool_definition`: the `mcp` tool as a client sees it: definition, requests, answers, next steps
* `next_steps`: commands that are printed as the next step, with the options they need
* `offline_catalogue`: the catalogue without a room
* `result_meta`: our keys in the `_meta` of a result
* `serve`: a room and its doors: in the foreground, over HTTP, in the background, inside a program; how it all ends
* `page.page_bridge`: `greenroom page`: a server of the owner's own, which asks a gateway over the control socket
* `json_views`: `status` and `tools` as the command line gets them, from a room or from the cache
"""
