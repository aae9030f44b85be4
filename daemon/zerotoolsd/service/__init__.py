"""The requests of users to the daemon.

job_requests      the methods that HTTP calls
submission        checks jobs and adds them to the queue
admission         the checks before a job is accepted
operations        changes of jobs, and requests about the machine
explanation       why a job waits, was restarted or ended
make_job_view     jobs as clients see them
run_curves        curves of a job and of the jobs that it continues
result_readers    checkpoints and predictions, read by a child process
evaluation_jobs   jobs that evaluate the checkpoints of another job
user_lookup       the names of users, looked up by a child process
"""
