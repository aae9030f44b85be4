"""From a save directory to a Checkpoint: find the files of one save, check them, join the ranks.

Imports `schema` and `partitioning`.
"""
