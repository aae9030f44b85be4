"""Quantised weights made plain, and plain ones quantised."""
