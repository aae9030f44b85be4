"""Communication with zerotoolsd: its address, compatible versions, and jobs submitted together.

Standard library only. Imports `jobs.jobfile` and `jobs.jobfile_tables`.
"""
