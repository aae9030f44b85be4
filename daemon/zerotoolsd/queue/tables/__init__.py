"""The smaller tables of the database. The tables of jobs and attempts are in `queue.store`.

preemption_table           attempts that were asked to end so that their jobs continue later
notice_outbox              notices that wait for their delivery
orphan_leases_and_uploads  GPUs that stay leased to ended attempts; uploads of finished jobs
usage_accounting           GPU-seconds of users, and the number of their jobs in the queue
"""
