"""A Slurm cluster of several nodes on this machine, for tests.

- `cluster`: starts and stops the cluster.
- `__main__`: trains a job on the cluster while processes are killed.
- `demo_job`: trains the job of the demo, which is preempted and queued again.
- `stored`: trains a job that copies its checkpoints to an object store.
"""
