"""The SDK's types, of whichever major is installed: `mcp_types` since 2.0, `mcp.types` before.

Imported by a function and not before somebody asks for one of its objects: it takes a third of a second.
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
