"""The page: what a person sees of a running gateway in a browser, and does there.

* `document`: the one document that a browser is given, and what it may do
* `room_page`: what the page asks of a room: a look, an act, and a stream of what changes
* `watch`: that stream
* `looks`: one server, its tools, the timeline (`timeline`: its lanes)
* `acts`: what an owner may do
* `routes`: its paths, at the HTTP door and in `greenroom page`
* `methods`: its methods of the control socket
* `bridge`: `greenroom page`: a small server of the owner's own, which asks a gateway over the control socket

The page has no data of its own. A number that it shows is one that `greenroom status` shows, made by the same function,
and a thing that it does is one that a command does.
"""
