"""What a checkpoint holds and what is wrong with it, from its metadata only.

Imports no numpy. Of `ops` it imports `execution.plan` only.
"""
