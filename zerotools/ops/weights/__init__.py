"""Which tensors an output gets, under which names and types: select, rename, tie, merge LoRA.

Imports `ops.execution`.
"""
