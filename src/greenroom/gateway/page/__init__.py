"""The page: what a person sees of a running gateway in a browser, and does there.

* `page_document`: the one document that a browser is given, and what it may do
* `room_page`: what the page asks of a room: a look, an act, and a stream of what changes
* `page_feed`: that stream
* `page_queries`: one server, its tools, the timeline (`timeline`: its lanes)
* `page_actions`: what an owner may do
* `page_routes`: its paths, at the HTTP door and in `greenroom page`
* `page_methods`: its methods of the control socket
* `page_bridge`: `greenroom page`: a small server of the owner's own, which asks a gateway over the control socket

The page has no data of its own. A number that it shows is one that `greenroom status` shows, made by the same function,
and a thing that it does is one that a command does.
"""
