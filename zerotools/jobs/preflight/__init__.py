"""Checks before a job starts: can it run on this checkpoint, DeepSpeed and machine; with advice.

Imports `jobs.tables`.
"""
