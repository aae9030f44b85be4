"""Floor 1: the durable queue, one SQLite database. Every change is a transaction with an event."""
