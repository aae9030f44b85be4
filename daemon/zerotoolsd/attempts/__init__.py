"""Attempts of jobs: how they start, are watched, are found again after a restart, and end.

launch, starting           the run directory and the supervisor; `launching` is committed first
watcher, reattach          the supervisors' pidfds; what has become of an attempt
waiting                    why one does not begin yet
numa                       on which processors ranks run, and whence their memory comes
warming                    those that find torch imported
stops                      what attempts were asked for, and whether that was heard
rebuilding                 what the run directories know and the queue does not
taking_up                  attempts of the last daemon, and of held jobs
ending, settling           what a record says of the end; how the end is committed
enforcing                  what ends attempts where their supervisors do not
residue                    what attempts leave on their GPUs, which are kept until it is gone
last_report, movement      what the ranks reported; whether an attempt still moves
programs                   the command of a user's own program

It may import `queue`, `config` and `supervisor`. The dispatcher alone calls what changes a job.
"""
