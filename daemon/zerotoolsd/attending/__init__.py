"""The process that hands a job to Slurm and watches it there: the only rank of its job here.

entry        its start: the daemon is imported from where it is
handing_over where the job lies, whether it was handed over before
relay        what its ranks told and wrote there, told and written here
attending    until the job is over, or somebody wants it to end
"""
