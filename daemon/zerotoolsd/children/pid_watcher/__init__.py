"""The process that watches one that a user started by hand.

It is the only rank of its job, so the job has all features of others: a supervisor that survives
the daemon, a time limit, a recorded end, and notifications.

entry           its start
watch_process   until the process has ended, or is not watched any more
exit_status     how a process ended that is not our child
watched_tree    the processes below it
"""
