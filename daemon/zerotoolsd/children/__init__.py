"""Programs that run as separate processes, which may hang or fail alone. No module imports them.

checkpoint_finder   searches for checkpoints of programs that do not report them
pid_watcher         watches a process that a user started by hand
export              makes a model directory of a checkpoint
mirror              copies checkpoints to an object store
thin                thins the older checkpoints of a running job
"""
