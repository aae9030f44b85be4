"""The contents of a checkpoint and its problems, from its metadata only.

Imports no numpy. Of `ops` it imports only `execution.plan`.
"""
