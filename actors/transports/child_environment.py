"""What a child may see of our environment: a short list, unless its definition says otherwise.

A server is somebody else's program, and our environment is full of tokens that are not meant for it. So it gets:

* the variables that a program needs to run at all;
* the certificates and proxies that it needs in a company's network (some programs read them in lower case, others in
  upper case);
* the variables that `inheritEnv` names, and those that its definition sets;
* two tags by which the guard finds its descendants, and how deep gateways are nested.

It does not get `SSH_AUTH_SOCK`, with which a program can sign as the user.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatch
from typing import Final
from urllib.parse import quote

from ...config.model import ServerDefinition
from ...protocol.address import DEPTH_KEY, Address, depth
from .guard import INCARNATION_KEY, ROOM_KEY

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
_MINIMAL: Final = frozenset((*(INHERITED_WINDOWS if sys.platform == "win32" else INHERITED_POSIX), *_NETWORK))


def incarnation_tag(run_id: str, address: Address, incarnation: int) -> str:
    """`GREENROOM_INCARNATION=<run id>:<address>#<n>`. The address is quoted, because a session may have any name."""
    return f"{INCARNATION_KEY}={run_id}:{quote(str(address), safe='[]:')}#{incarnation}"


def child_environment(definition: ServerDefinition, incarnation_tag: str, run_id: str) -> dict[str, str]:
    """The whole environment of a child. Our tags override everything else."""
    key, _, value = incarnation_tag.partition("=")
    return {
        **untagged_environment(definition),
        ROOM_KEY: run_id,
        key: value,
        DEPTH_KEY: str(depth(os.environ) + 1),
    }


def untagged_environment(definition: ServerDefinition) -> dict[str, str]:
    """The environment without our tags. The definition's `env` overrides what is inherited."""
    wanted = definition.inherit_env
    if wanted is True:
        return {**os.environ, **definition.env}
    inherited: dict[str, str] = {}
    for name, value in os.environ.items():
        is_minimal = name in _MINIMAL or name.startswith(_LOCALE)
        is_function = value.startswith("()")  # an exported one
        if (is_minimal and not is_function) or _is_named(name, wanted or ()):
            inherited[name] = value
    return {**inherited, **definition.env}


def _is_named(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether the definition asks for this variable, by name or by pattern."""
    return bool(patterns) and any(fnmatch(name, pattern) for pattern in patterns)
