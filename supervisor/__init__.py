"""Who decides: restart, gate, idle, pool, reload; the root supervisor; `Greenroom`, the public door."""
