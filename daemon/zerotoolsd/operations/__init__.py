"""What users change of jobs in the queue.

waiting_jobs    priority of jobs that are not over; holds
job_edits       another job file for one that has not started
jobs_again      a job that is over, once more from the start
draining        nothing starts
"""
