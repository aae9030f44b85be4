"""From a source and a target to bytes on disk or in memory: plan, tiles, workers, write, verify.

Imports `core`, `io` and `formats`, and no other package of `ops`.
"""
