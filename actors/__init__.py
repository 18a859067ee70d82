"""Who acts: the actor kernel, the server actor, the router, the catalogue writer, and what carries messages to
servers.

Other rooms may import:

* `backend`: the few places where trio and asyncio differ on the hot path
* `call`: one request of a user, and its exactly one outcome
* `call_events`: the events of calls, made while somebody reads them
* `catalogue_writer`: the one actor that writes the catalogue's file
* `event_stream`: one ordered sequence of everything observable
* `current_trace`: which trace the work belongs to that is done now
* `fork`: a room is inert in the child of a fork
* `handshake`: agrees with a server on a version, and learns who it is
* `host`: who answers a server's requests to its client
* `login.caller_auth`: the caller's own token on each request of a session's connection
* `login.caller_identity`: who calls, as a door has found out
* `login.token_exchange`: a token for one server, for one caller
* `login.login_record`: one login: its tokens, whose they are, where they are renewed
* `login.login_auth`: which servers may have a login, and a login on each request
* `mailbox`: mailbox, ref, reply, and the core actors that have a task of their own
* `message_buffer`: one message as it comes in: its values are counted, its text is repaired
* `open_requests`: the requests between us and one other side that have no answer yet
* `peer`: peer, connection, connector: the seam to whatever carries messages; why one was lost
* `process_tuning`: what a process that exists only for a room sets for all of itself, and why
* `last_minutes`: the last events and calls of a room, kept for who asks later
* `room_context`: what all actors of one room share
* `router`: the actor that owns the index and publishes it
* `server`: the server actor: its steps, start, waits and idling; what it asks its supervisor
* `server_reports`: what a server has been asked to report: subscriptions and the log level
* `timers`: one heap of deadlines for the room, and one alarm for each actor
* `transports.api_carrier`: an HTTP API in the place of a server: what it is asked, and what is sent to it
* `transports.api_document`: what an HTTP API has: its document, fetched and kept
* `transports.child_process`: a child process and its group, which no signal misses
* `transports.guard`: children end with us, even by SIGKILL
* `transports.first_line`: the first line of a link, as both of its ends read it
* `transports.http_client`: one exchange over HTTP: client, signed requests
* `transports.http_connection`: an HTTP server's connection
* `transports.http_faults`: the ways an exchange over HTTP can end without an answer
* `transports.http_peer`: the peer over HTTP, and what carries its requests
* `transports.in_process`: a server object of the SDK in our loop; all that is used of its provisional API
* `transports.link`: our end of a link to a Greenroom that carries calls out for us
* `transports.lines`: lines in and out of descriptors, bounded, towards a slow or silent other side
* `transports.npx`: starts what `npx` would start, without npm
* `transports.npx_request`: what a command line of `npx` asks for
* `transports.orphans`: adopts processes that left their tree (Linux)
* `transports.stderr_log`: what servers write to their stderr, in a bounded file for each
* `transports.stdio`: a server that is our child: how it is connected, and the ways it ends
* `transports.unix_socket`: a server behind a unix socket
* `watchers`: who is told of the moments of calls: the one seam around a call
* `workers`: work beside the loop: in turns, in a thread, as an optional service
"""
