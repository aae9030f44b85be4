"""Whether a job can run as asked: on this checkpoint, DeepSpeed and machine; else what to change.

Imports `jobs.tables`.
"""
