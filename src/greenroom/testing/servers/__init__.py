"""Small MCP servers on the standard library alone, only ever run as processes: for the demo and for tests."""
