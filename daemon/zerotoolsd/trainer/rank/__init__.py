"""Who this rank is, the other ranks, what asks it to stop, and how it ends.

It imports no other room of the trainer. `settings`, `notify` and `failures` import no torch.
"""
