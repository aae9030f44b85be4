"""Where the tensors of a run live, on device, host or disk, as the memory layout says.

tiers, page_lock              memory of each kind, and how much of it is in use
reductions                    the buffers in which gradients are reduced
dtypes                        torch's types by the job file's names

It imports no other room of the trainer.
"""
