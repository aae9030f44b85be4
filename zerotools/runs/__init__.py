"""The checkpoints of our own jobs, whichever engine trains: record, manifest, directories.

It lies above `io` and below `formats`, so formats, ops, jobs and the daemon may import it. Standard
library only, as the training process uses it too.
"""
