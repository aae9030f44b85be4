"""The identity of this rank, the other ranks, stop requests, and the end of a rank.

It imports no other package of the trainer. `settings`, `notify` and `failures` import no torch.
"""
