"""Sequences that several ranks compute together, each a stretch of the positions.

all_to_all            the communication of the ranks of a share
sequence_attention    attention with all positions of some heads
split_batch           the stretch of a batch that a rank computes
in_threads            threads in place of ranks
rope                  rotary angles that depend on the length of the whole sequence

The rest of a model works position by position, and so on a stretch; `sequence_parallel_check`
tests it.
Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.
"""
