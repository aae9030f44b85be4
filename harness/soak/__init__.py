"""Random trouble for half an hour, and what is left of the work.

- `rounds`: the jobs of a round, of several kinds, and what they have to come to.
- `trouble`: what is done to daemon, supervisors, ranks, disk, descriptors and NVML.
"""
