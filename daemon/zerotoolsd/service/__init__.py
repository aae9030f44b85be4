"""The requests of users to the daemon.

job_requests           the methods that HTTP calls
submission             takes a job into the queue
admission              the checks before a job is accepted
operations             changes of jobs, and requests about the machine
results                curves, checkpoints and predictions of a job
explain                why a job waits, was restarted or ended
views                  jobs as clients see them
user_lookup            the names of users, looked up by a process that may hang
"""
