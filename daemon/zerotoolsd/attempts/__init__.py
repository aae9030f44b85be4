"""Attempts of jobs: their start, monitoring, end, and recovery after a restart.

launch, starting           the run directory and the supervisor; `launching` is committed first
watcher, reattach          the supervisors' pidfds; the status of an attempt
waiting                    why one does not start yet
numa                       the processors and memory nodes of ranks
warming                    attempts that start with torch imported
stops                      the stop requests, and whether they were received
rebuilding                 the data of run directories that the queue lacks
taking_up                  attempts of the last daemon, and of held jobs
ending, settling           the end by an attempt's record; how it is committed
enforcing                  ends attempts if their supervisors do not
residue                    leaked memory of GPUs, which stay leased until it is free
last_report, movement      the reports of ranks; whether an attempt makes progress
programs                   the command of a user's own program

It may import `queue`, `config` and `supervisor`. Only the dispatcher calls functions that change a
job.
"""
