"""Who acts: the actor kernel, the server actor, the router, the catalogue writer, and the connections."""
