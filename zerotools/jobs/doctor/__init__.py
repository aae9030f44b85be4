"""Checks for obstacles to jobs on this machine, with advice: one module for each kind of check.

Every check takes its input as an argument (a snapshot, a root of /proc, a directory) and yields
findings. The checks change nothing.
"""
