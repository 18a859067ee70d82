"""The doors to the outside: the `mcp` tool, the MCP endpoint, the command line."""
