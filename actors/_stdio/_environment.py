"""What a child may see of our environment: a short list, unless its definition says otherwise.

A server is somebody else's program; our environment is full of tokens that are none of its business. It gets what a
program needs to run at all, and to reach anything from a company's network (its certificates and proxies, which are
lower case for some programs and upper case for others); what `inheritEnv` names; what its definition gives it; and two
tags by which the guard finds its descendants. Not `SSH_AUTH_SOCK`: whoever has that can sign as the user.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatch
from urllib.parse import quote

from ...protocol.address import DEPTH_KEY, Address, depth
from ...protocol.config import ServerDefinition
from .._guard import INCARNATION_KEY, ROOM_KEY

INHERITED_POSIX = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
INHERITED_WINDOWS = (
    "APPDATA",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "PATH",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "PROGRAMFILES",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
)
NETWORK = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_NETWORK = frozenset((*NETWORK, *PROXIES, *(name.lower() for name in PROXIES)))
_LOCALE = "LC_"


def child_environment(definition: ServerDefinition, incarnation_tag: str, run_id: str) -> dict[str, str]:
    """The whole environment of a child: the inherited part, the definition's `env` over it, our tags over both."""
    wanted = definition.inherit_env
    inherited = dict(os.environ) if wanted is True else {**_minimal(), **_named(wanted or ())}
    key, _, value = incarnation_tag.partition("=")
    return {
        **inherited,
        **definition.env,
        ROOM_KEY: run_id,
        key: value,
        DEPTH_KEY: str(depth(os.environ) + 1),
    }


def incarnation_tag(run_id: str, address: Address, incarnation: int) -> str:
    """`GREENROOM_INCARNATION=<run id>:<address>#<n>`, the address quoted: a session may be named anything."""
    return f"{INCARNATION_KEY}={run_id}:{quote(str(address), safe='[]:')}#{incarnation}"


def _minimal() -> dict[str, str]:
    names = INHERITED_WINDOWS if sys.platform == "win32" else INHERITED_POSIX
    return {
        name: value
        for name, value in os.environ.items()
        if (name in names or name in _NETWORK or name.startswith(_LOCALE))
        and not value.startswith("()")  # "()": an exported function
    }


def _named(patterns: tuple[str, ...]) -> dict[str, str]:
    """What the definition asks for by name or by pattern."""
    return {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch(name, pattern) for pattern in patterns)
    }
