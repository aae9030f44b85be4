"""The shared code of both launchers' readers: typed keys, claims on keys of the job, the report.

Imports `jobs.launcher_keys`, `jobs.text`, `jobs.tables` and `jobs.binding`.
"""
