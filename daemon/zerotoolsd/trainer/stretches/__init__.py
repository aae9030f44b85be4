"""Sequences that several ranks compute together, each a stretch of the positions.

swapping              what the ranks of a share tell one another
over_ranks            attention with all positions of some heads
cutting               the stretch of a batch that a rank computes
in_threads            threads in the place of ranks
angles                rotary angles that depend on how long the whole sequence is

All else of a model works position by position, and so on a stretch alone; `stretch_check` tries it.
Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.
"""
