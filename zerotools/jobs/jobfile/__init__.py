"""A job file's text, or a stored job, into one valid `JobSpec`, and back.

Imports `jobs.binding`, `jobs.text` and `jobs.tables`.
"""
