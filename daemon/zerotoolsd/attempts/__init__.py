"""Attempts: start, watch, find again after a restart of the daemon, read what they report.

It may import `queue`, `config` and `supervisor`. It does not change the state of a job.
"""
