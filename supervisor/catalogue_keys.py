"""The keys of catalogue entries. Rooms use this, and so do commands that start no room.

It needs only the environment and the working directory, so a command pays for nothing else.
"""

from __future__ import annotations

import os

from ..protocol.config import Config
from ..protocol.config_parse import definition_hash


def catalogue_keys(config: Config) -> dict[str, str]:
    """The definition hash of every server, for the present working directory and environment."""
    try:
        directory = os.getcwd()
    except OSError:  # the directory was removed, so relative paths lead nowhere
        directory = ""
    environ = dict(os.environ)  # read thousands of times, and `os.environ` decodes each time
    return {
        name: definition_hash(definition, environ, directory, config.settings)
        for name, definition in config.servers.items()
    }
