"""Check this machine for problems that stop or slow down jobs, and advise the user.

Each module has one kind of check. A check gets its input as an argument (a snapshot, a root of
/proc, a directory) and yields findings. The checks change nothing.
"""
