"""A checkpoint before it is cut: the state of one model-parallel rank, whatever the world size.

It is made from DeepSpeed's own files or from another format, and changed to another ZeRO stage.
Imports `schema` and `partitioning`.
"""
