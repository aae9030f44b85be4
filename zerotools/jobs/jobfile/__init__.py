"""Convert a job file's text or a stored job to a valid `JobSpec`, and back.

Imports `jobs.binding`, `jobs.text` and `jobs.jobfile_tables`.
"""
