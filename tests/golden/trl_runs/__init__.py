"""Runs of TRL, whose losses are kept in `tests/golden/trl-VERSION`."""
