"""The SDK's types, from whichever major version is installed: `mcp_types` since 2.0, `mcp.types` before.

A function imports them when they are first needed, because the import takes a third of a second.
"""

from __future__ import annotations

from typing import Any


def sdk_types() -> Any:
    """The module with `Tool`, `CallToolResult` and the others."""
    try:
        import mcp_types
    except ModuleNotFoundError:
        import mcp.types as older_types

        return older_types
    return mcp_types
