"""The commands that write a checkpoint: consolidate, reshard and convert, each first a plan.

The top package: imports `ops.execution`, `ops.weights` and `ops.sidecars`.
"""
