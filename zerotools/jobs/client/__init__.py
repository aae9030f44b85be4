"""Talking to zerotoolsd: where it listens, which versions fit, and jobs submitted together.

Standard library only. Imports `jobs.jobfile` and `jobs.tables`.
"""
