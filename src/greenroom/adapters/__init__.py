"""A room in the agent frameworks: a module for each of them, named after it.

`fastmcp` is a transport to a room in this process, and serves every framework that takes a client or a transport of
FastMCP. `asgi` is for web applications, and imports none. The others are made of what their framework itself has for
tools; `shared` is what they do alike.

Each module imports its framework, and none of them is imported by the rest of Greenroom. Each framework has an extra of
its own, with lower bounds alone; `docs/frameworks.md` says which versions were tried. What the modules use of Greenroom
is its public door, so anybody could have written them.
"""
