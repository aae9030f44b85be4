"""What users change of jobs in the queue, and ask of the machine.

waiting_jobs    priority of jobs that are not over; holds
pausing         a job gives what it has back and goes on later
job_edits       another job file for one that has not started
jobs_again      a job that is over, once more: from where it came to, or from the start
machine_state   what the daemon answers of itself and the machine
draining        nothing starts
"""
