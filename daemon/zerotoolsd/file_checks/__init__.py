"""Processes that read the files of users, which may be on a file system that never responds.

check_server        the process that forks such processes, before the daemon opens anything
file_checker_pool   sends requests with deadlines to them, and finds mounts that do not respond
"""
