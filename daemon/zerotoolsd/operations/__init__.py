"""What users change of jobs in the queue.

waiting_jobs    priority of jobs that are not over
"""
