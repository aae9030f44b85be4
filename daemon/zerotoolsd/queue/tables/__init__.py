"""Tables of the database next to those of jobs and attempts.

preemption_table    attempts that were asked to end so that their jobs continue later
notice_outbox       notices that wait for their delivery
orphan_leases       GPUs that stay leased to ended attempts
upload_table        the planned uploads and their results
usage_accounting    GPU-seconds of users
user_counts         the jobs of each user in the queue
"""
