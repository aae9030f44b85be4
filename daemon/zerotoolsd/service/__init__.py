"""What users ask of the daemon.

protocol, jobservice   the methods that HTTP calls, and what they do
submission             takes a job into the queue
admission              the checks before a job is accepted
operations             changes of jobs, and requests about the machine
results                curves, checkpoints and predictions of a job
explain                why a job waits, was restarted or ended
views                  jobs as clients see them
user_lookup            the names of users, looked up by a process that may hang
"""
