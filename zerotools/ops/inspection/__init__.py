"""The contents of a checkpoint and its problems, from its metadata.

inspect           `zerotools inspect`: tensors, files and problems
training_summary  the training state, and the number of parameters and bytes
completeness      whether a checkpoint is complete; truncated and missing files
loss_curves       the loss of the run, from the file next to its checkpoints
next_commands     commands that the user can run next

Imports no numpy. Of `ops` it imports `execution.plan_copies` and `quantised`.
"""
