"""The fork server: a process that has imported the trainer's modules and forks attempts.

The fork server imports the modules once. For each attempt it forks a process, which becomes the
keeper of the attempt, as if the daemon had started it. The keeper forks the supervisor, and the
supervisor forks the ranks. So the supervisor and the ranks have the same parents and control groups
as without the fork server, and end in the same way. No process waits for the fork server, and it
may be killed at any moment.

fork_attempts     imports the modules, receives requests of the daemon, forks attempts
run_rank_in_fork  runs a rank in a forked process, without `exec`
entry             starts the process of the fork server
"""
