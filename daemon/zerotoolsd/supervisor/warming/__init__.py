"""A process that has a trainer's modules imported, and becomes the supervisor of an attempt.

It imports once, and forks for each attempt: the fork is the attempt's keeper, as the daemon would
have started it, and forks the supervisor, whose ranks are forks again. So every process has the
parents, the control group and the end that it has without this one, which nothing waits for and
which may be killed at any moment.

loaded    what was imported, and whether it may be forked
program   a rank that is not executed: it goes on in the memory that it was forked with
forking   the process: imports, answers the daemon, forks
entry     its start
"""
