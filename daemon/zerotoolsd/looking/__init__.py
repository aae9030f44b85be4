"""Processes that look at the files of users, which may lie on a file system that never answers.

frames    messages between the daemon and such a process
nursery   the process that makes them, forked before the daemon is anything
signs_of_life  mounts that do not answer
lookers   the daemon's side: questions with deadlines, and another process where one hangs
"""
