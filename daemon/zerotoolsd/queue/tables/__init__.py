"""Reads and writes the smaller tables of the database. The tables of jobs, attempts and
the drain are in `queue.store`.

dependency_table  stores which job starts after which other jobs
preemption_table  stores requests to attempts to end so that their jobs continue later
notice_outbox     stores notices that wait for their delivery
orphan_leases     stores leases of GPUs by ended attempts
upload_table      records the uploads of finished jobs, in the records of their attempts
usage_accounting  books GPU-seconds of users, and counts their jobs in the queue
"""
