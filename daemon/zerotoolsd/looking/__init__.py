"""Processes that read the files of users, which may be on a file system that never responds.

frames    messages between the daemon and such a process
nursery   the process that forks them, itself forked before the daemon has any state
signs_of_life  mounts that do not respond
lookers   the daemon's side: requests with deadlines, and another process if one hangs
"""
