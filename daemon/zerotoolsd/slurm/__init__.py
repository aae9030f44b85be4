"""Jobs under Slurm.

watcher           submits a job of the daemon, and watches it until it ends
runner            runs a job in its allocation, without a daemon
check_submission  the daemon's checks, for a job that is submitted without a daemon
"""
