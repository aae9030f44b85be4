"""How keys are declared, and how plain trees (TOML, JSON) become the dataclasses that declare them.

Standard library only. Imports no other room of `jobs`.
"""
