"""Actions that several job commands share: find the job that the user means, submit, follow, wait,
change.

job_reference          find the job that a command means: a number, a name, or the newest
daemon_submission      submit jobs and arrays to the daemon
slurm_submission       submit jobs to Slurm, without a daemon
conversion_submission  make the job of `submit --convert`
follow_progress        follow one job until it ends
wait_for_jobs          poll the daemon, and wait until jobs end
send_job_requests      send one request for each of several jobs; run jobs again

Imports `cli.job_views`, `cli.options` and `cli.output`.
"""
