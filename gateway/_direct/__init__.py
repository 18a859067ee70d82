"""The `direct` door: what the servers have, by name, as if each were the client's own.

* `_shown`     what is listed: the catalogue, under the names of the index, and what of it has changed
* `_door`      the exposure: whose each request is
* `_calls`     one request, on its way to its server and back
* `_answers`   how a call's end is told: results as they are, errors by whose they are
* `_direct_client`  the clients: what each watches, which streams it keeps open
* `_readable`  results that strict clients refuse, made readable
* `_links`     which server gave a client which URI

We are a middle here: a result is passed on as the bytes the server sent, and only what names a thing is ours.
"""

from ._door import Direct

__all__ = ["Direct"]
