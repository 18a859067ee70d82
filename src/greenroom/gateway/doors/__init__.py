"""The doors: standard input and output, HTTP, the background room, and the control socket for commands."""
