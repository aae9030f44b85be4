"""The location of a run's tensors, on device, host or disk, according to the memory layout.

tiers, page_lock              memory of each kind, and its use
reductions                    the buffers in which gradients are reduced
dtypes                        torch's types by the job file's names

It imports no other package of the trainer.
"""
