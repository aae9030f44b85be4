"""Causes random faults for half an hour, and checks the result.

- `__main__`: runs rounds until the time is over.
- `rounds`: the jobs of a round, of several kinds, and the states in which they must end.
- `trouble`: faults of the daemon, supervisors, ranks, the disk, file descriptors and NVML.
"""
