"""Options that several commands share, and what follows from them.

Imports `cli.output`.
"""
