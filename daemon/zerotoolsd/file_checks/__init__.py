"""Processes that read the files of users, which may be on a file system that never responds.

message_frames   messages between the daemon and such a process
check_server     the process that forks them, itself forked before the daemon has any state
hung_mounts      mounts that do not respond
checkers         the daemon's side: requests with deadlines, and another process if one hangs
"""
