"""Declarations of keys, and binding of plain trees (TOML, JSON) to the dataclasses that declare
them.

Standard library only. Imports no other package of `jobs`.
"""
