"""A process with a trainer's modules imported that becomes the supervisor of an attempt.

It imports once, and forks for each attempt. The fork is the attempt's keeper, as if the daemon had
started it; it forks the supervisor, and the ranks are forks of that. So every process has the same
parents, control group and end as without the server. Nothing waits for the server, and it may be
killed at any moment.

fork_attempts   the process: imports, answers the daemon, forks
run_in_fork     a rank that is not executed: it continues in the memory of its fork
entry           its start
"""
