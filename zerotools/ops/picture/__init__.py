"""Pages for browsers that draw checkpoints. Each is one HTML file.

html_page             make the page from its parts, and write it
checkpoint_page_data  the values that the page of a checkpoint shows: modules, files, statistics

Imports `ops.inspection` and `ops.statistics`, and no other package of `ops`.
"""
