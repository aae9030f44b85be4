"""Pages for browsers that draw checkpoints. Each is one HTML file.

page       the page from its parts, and writing it
contents   what the page of a checkpoint shows: modules, files, statistics

Imports `ops.inspection` and `ops.statistics`, and no other package of `ops`.
"""
