"""Read JSON, YAML and TOML with line numbers and suggested corrections, and write TOML with
comments.

Imports `jobs.binding`.
"""
