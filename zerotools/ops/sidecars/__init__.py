"""Files beside the tensors of an output: which are carried along, and which are left behind.

Imports no other room of `ops`.
"""
