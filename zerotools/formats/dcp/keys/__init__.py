"""What the flat keys of a DCP mean: which model or optimizer each belongs to, and in which role.

Imports `io.distcp` and its own modules only.
"""
