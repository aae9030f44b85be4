"""Where the tensors of a run live, on device, host or disk, and how each is cut among ranks.

It imports no other room of the trainer.
"""
