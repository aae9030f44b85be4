"""The process that submits a job to Slurm and watches it there. On this machine it is the only rank
of the job.

entry             starts the process, with the daemon's package imported from next to itself
submit_and_watch  submits the job once, passes on its reports and logs, and records its end
"""
