"""Computes one sequence on several ranks. Each rank has some of the positions.

sequence_attention    attention: each rank gets all positions of some heads
all_to_all            the exchange between the ranks
split_batch           the positions of a batch that a rank computes

All layers other than attention work position by position. `check_sequence_parallel` tests that.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.
"""
