"""The stored reasons that keep jobs from starting: other jobs, and a drain by an administrator.

dependency_table    which jobs start after which
drain_table         why no job starts
"""
