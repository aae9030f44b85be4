"""The users' changes of jobs in the queue, and their requests about the machine.

waiting_jobs    priority of jobs that are not over
holding         hold and release: a job saves, keeps its position, and starts when it is released
job_edits       another job file for one that has not started
job_examples    the first examples of a job as its model sees them
jobs_again      a job that is over, once more: from where it came to, or from the start
machine_state   what the daemon answers of itself and the machine
draining        nothing starts
"""
