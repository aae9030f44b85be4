"""Processes that tests start: how long one waits for them, and that none is left behind."""
