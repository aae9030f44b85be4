"""Checks that a job can run as requested: on this checkpoint, DeepSpeed and machine; with advice.

Imports `jobs.tables`.
"""
