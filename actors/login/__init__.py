"""Logins at servers: where they are kept, how a server's requests get one, how a person logs in."""
