"""Random faults for half an hour, and checks of the result.

- `rounds`: the jobs of a round, of several kinds, and the state that each must end in.
- `trouble`: faults of daemon, supervisors, ranks, disk, descriptors and NVML.
"""
