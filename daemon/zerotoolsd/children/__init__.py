"""Programs that run as separate processes, so that a program that hangs or fails harms nothing
else. No module imports these programs.

checkpoint_finder   searches for checkpoints of programs that do not report them
pid_watcher         watches a process that a user started by hand
export              makes a model directory from a checkpoint
mirror              copies checkpoints to an object store
thin                thins the older checkpoints of a running job
"""
