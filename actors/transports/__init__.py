"""What carries messages to a server: a child's pipes, HTTP, a unix socket, an object in our loop."""
