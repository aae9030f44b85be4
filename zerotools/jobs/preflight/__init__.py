"""Check before a job starts whether its checkpoint, its DeepSpeed and this machine allow it to run.

Imports `jobs.jobfile_tables`.
"""
