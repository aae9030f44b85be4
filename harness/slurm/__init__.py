"""A Slurm cluster of several nodes on this machine, for tests: `cluster`."""
