"""What a client is shown: one `mcp` tool, the servers' own tools, or four meta tools."""
