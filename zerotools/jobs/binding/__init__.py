"""Declare the keys of a file, and convert TOML or JSON values to the dataclasses with these keys.

Standard library only. Imports no other package of `jobs`.
"""
