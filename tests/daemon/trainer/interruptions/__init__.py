"""Runs that are stopped and killed at random steps, or moved, against runs that nobody touched.

ways        what is trained: stages, precisions, data, adapters, routers
by_daemon   a job through a real daemon, ended in three ways
by_ranks    the same without a daemon, which is quicker
moving      a job stopped, and gone on from at other stages and numbers of ranks
compared    what must be equal

`python -m tests.daemon.trainer.interruptions` prints all tables; no test runs it.
"""
