"""Conversion between a job file's text, a stored job, and one valid `JobSpec`.

Imports `jobs.binding`, `jobs.text` and `jobs.tables`.
"""
