"""The doors: standard input and output, HTTP, the background gateway, and the control socket for commands."""
