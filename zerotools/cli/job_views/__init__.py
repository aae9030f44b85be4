"""Jobs of the daemon in words: describing, naming, following and queueing them.

Imports `cli.output`.
"""
