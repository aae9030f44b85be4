"""What keeps jobs from starting, as the database has it: other jobs, and an administrator's word.

dependency_table    which jobs start after which
drain_table         why nothing starts
"""
