"""Code that the readers of all configs share: typed keys, claims on keys of the job, the report.

Imports `jobs.launcher_keys`, `jobs.text`, `jobs.tables` and `jobs.binding`.
"""
