"""JSON, YAML and TOML as text: read with line numbers and likely fixes, written with comments.

Imports `jobs.binding`.
"""
