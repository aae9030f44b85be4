"""The commands that write a checkpoint: consolidate, reshard and convert, each a plan first.

The top room: imports `ops.execution`, `ops.weights` and `ops.sidecars`.
"""
