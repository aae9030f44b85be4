"""Sequences that several ranks compute together, each a stretch of the positions.

swapping              the communication of the ranks of a share
over_ranks            attention with all positions of some heads
cutting               the stretch of a batch that a rank computes
in_threads            threads in place of ranks
angles                rotary angles that depend on the length of the whole sequence

The rest of a model works position by position, and so on a stretch; `stretch_check` tests it.
Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.
"""
