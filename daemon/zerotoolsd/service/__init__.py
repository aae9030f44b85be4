"""Carries out the requests of users to the daemon.

answer_requests                   defines the methods that the HTTP handlers call
submission                        checks jobs and adds them to the queue
admission                         contains the checks before a job is accepted
operations                        changes jobs, and answers requests about jobs and the machine
explain_job                       explains why a job waits, was restarted or ended
make_job_view                     makes the views of jobs that clients see
downsample_curves                 computes curves of a job and of the jobs that it continues
read_checkpoints_and_predictions  reads checkpoints and predictions, in a child process
queue_evaluation_jobs             makes and finds jobs that evaluate checkpoints of another job
user_lookup                       looks up the names of users, in a child process
"""
