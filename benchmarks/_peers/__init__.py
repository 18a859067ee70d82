"""Other people's gateways, as programs of their own."""
