"""What could stop jobs on this machine, and what to do about it: one module for each kind of look.

Every look takes what it looks at as an argument (a snapshot, a root of /proc, a directory) and
yields findings. Nothing is changed.
"""
