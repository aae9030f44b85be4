"""Counts of each user's jobs in the queue."""
