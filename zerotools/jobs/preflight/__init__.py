"""Check before a job starts if it can run with its checkpoint, its DeepSpeed and this machine.

Imports `jobs.jobfile_tables`.
"""
