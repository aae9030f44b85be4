"""From a logical state to DeepSpeed's files: the target layout, then one module per kind of output.

Imports `schema`, `partitioning` and `logical`.
"""
