"""Queueing jobs: several at once, the members of an array, a conversion."""
