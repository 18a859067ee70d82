"""Greenroom: a supervised-actor runtime for MCP servers."""

__version__ = "0.1.0"
