"""The `direct` door: what the servers have, by name, as if each item were the client's own.

* `_shown`     what is listed: the catalogue under the names of the index, and its changes
* `_door`      the exposure: finds the server of each request
* `_calls`     one request, on its way to its server and back
* `_answers`   how a call ends for the client: results unchanged, errors with their origin
* `_direct_client`  the clients: what each watches, which streams it keeps open
* `_readable`  results that strict clients refuse, made readable
* `_outline`   the same for large results, in slices
* `_scrubbed`  results that lose credentials
* `_links`     which server gave a client which URI

The gateway is a middle here: it passes on a result as the bytes the server sent, and changes only names.
"""

from ._door import Common, Direct
from ._shown import Shown

__all__ = ["Common", "Direct", "Shown"]
