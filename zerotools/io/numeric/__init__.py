"""Elements of tensors: numpy's types, casts, single numbers, and gathering them from files.

The only package of `io` that imports numpy. Imports `core` and `io.files`.
"""
