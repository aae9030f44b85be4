"""Options that several commands share, and their effects.

Imports `cli.output`.
"""
