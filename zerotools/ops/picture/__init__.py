"""Pages for browsers that draw checkpoints. Each is one HTML file.

html_page             make the page from its parts, and write it
checkpoint_page_data  the values that the page of a checkpoint shows: modules, files, statistics

Of `ops` it imports `inspection`, `statistics` and `weights`.
"""
