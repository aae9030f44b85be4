"""DeepSpeed checkpoints: ZeRO stages 0 to 3 and BF16_Optimizer, as every version wrote them.

files     the grammar of file names in a tag directory
find      which tag directory a path means
flat      ranges of flat, partitioned vectors as chunks
geometry  where each parameter lies in the vectors of all ranks: stages 1 and 2, and stage 3
model     what a `*_model_states.pt` says
shards    what the `*_optim_states.pt` of all ranks say
column    one model-parallel rank's tensors, put together from the above
read      the whole checkpoint
training  what the files say of the run, in words that all formats share
order     how the order of parameters follows from the number of ranks
output    one file to be written, with what it carries over
lay_out   the whole checkpoint for another number of ranks
"""

from __future__ import annotations

from zerotools.formats.deepspeed.read import read
from zerotools.formats.deepspeed.training import training_of

__all__ = ["read", "training_of"]
