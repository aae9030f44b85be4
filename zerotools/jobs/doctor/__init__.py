"""Check this machine for problems that stop or slow down jobs, and advise the user.

One module for each kind of check.

Every check gets its input as an argument (a snapshot, a root of /proc, a directory) and yields
findings. The checks change nothing.
"""
