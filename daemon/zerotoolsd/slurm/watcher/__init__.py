"""The process that submits a job to Slurm and watches it there: the only rank of its job here.

entry             its start: imports the daemon from the location of this file
submit_once       the directory of the job, and whether it was submitted before
relay             passes on the reports and logs of its ranks
watch_slurm_job   until the job is over, or must end
"""
