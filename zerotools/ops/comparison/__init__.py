"""Two checkpoints side by side: which tensors belong together, and how far apart they are.

Imports `ops.execution`, `ops.weights` and `ops.inspection`.
"""
