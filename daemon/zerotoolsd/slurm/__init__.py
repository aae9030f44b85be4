"""Jobs under Slurm.

watcher           submits a job of the daemon to Slurm, and watches it until it ends
runner            runs a job in its Slurm allocation, without a daemon
check_submission  runs the daemon's checks of a job that is submitted without a daemon
"""
