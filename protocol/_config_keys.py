"""Every key of a configuration file, as data.

The parser, the JSON Schema, the printed configuration and the tables in docs/configuration.md are all made from
these two tables, so they always agree. What a key is: `_config_key`.
"""

from __future__ import annotations

from typing import Final

from ._config_server_keys import SERVER_KEY, SERVER_KEYS
from ._config_setting_keys import SETTING_KEY, SETTING_KEYS

__all__ = ["IMPORT_KINDS", "SERVER_KEY", "SERVER_KEYS", "SETTING_KEY", "SETTING_KEYS"]

IMPORT_KINDS: Final = (
    "cursor", "claude-code", "claude-desktop", "vscode", "windsurf", "codex", "opencode", "pi",
)  # fmt: skip
