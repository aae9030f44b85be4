"""Elements of tensors: numpy's types, casts, single numbers, and gathering them from files.

The only room of `io` that imports numpy. Imports `core` and `io.files`.
"""
