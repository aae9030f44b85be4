"""Processes that read the files of users, which may be on a file system that never responds.

check_server        the process that forks them; it is forked before the daemon opens anything
file_checker_pool   the daemon's side: requests with deadlines, and mounts that do not respond
"""
