"""Under which key the catalogue keeps what it knows of a server: asked here by rooms and by commands that start none.

Only the environment and the working directory are looked at, so a command pays for nothing else.
"""

from __future__ import annotations

import os

from ..protocol.config import Config
from ..protocol.config_parse import definition_hash


def catalogue_keys(config: Config) -> dict[str, str]:
    """The definition hash of every server, as it would be started from here and now."""
    try:
        directory = os.getcwd()
    except OSError:  # removed under us: what is relative is nowhere
        directory = ""
    environ = dict(os.environ)  # asked thousands of times, and each time it would decode
    return {
        name: definition_hash(definition, environ, directory, config.settings)
        for name, definition in config.servers.items()
    }
