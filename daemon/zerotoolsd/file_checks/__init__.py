"""Processes that read the files of users, which may be on a file system that never responds.

file_check_server   forks such processes from a process that the daemon starts first
file_checker_pool   sends requests with deadlines, and finds mounts that do not respond
"""
