"""What may be said: the lifecycle table, messages, events, errors, configuration, names, records. Pure data."""
