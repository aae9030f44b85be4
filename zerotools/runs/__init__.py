"""The checkpoints of zerotools jobs, for every engine: record, manifest, directories.

It is above `io` and below `formats`, so formats, ops, jobs and the daemon may import it. Standard
library only, because the training process uses it too.
"""
