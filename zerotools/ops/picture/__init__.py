"""A checkpoint as one HTML page: its modules, and where each byte lies."""
