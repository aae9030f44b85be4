"""The fork server: a process that has imported the trainer's modules and forks attempts.

It imports once, and forks for each attempt. The fork is the attempt's keeper, as if the daemon had
started it; it forks the supervisor, and the ranks are forks of that. So every process has the same
parents, control group and end as without the server. Nothing waits for the server, and it may be
killed at any moment.

fork_attempts   the process: imports, answers the daemon, forks
run_in_fork     runs a rank in a fork, without `exec`
entry           starts the process
"""
