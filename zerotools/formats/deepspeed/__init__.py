"""DeepSpeed checkpoints: ZeRO stages 0 to 3 and BF16_Optimizer, as every version wrote them.

files     the grammar of file names in a tag directory
find      which tag directory a path means
flat      ranges of flat, partitioned vectors as chunks: the geometry of all stages
model     what a `*_model_states.pt` says
shards    what the `*_optim_states.pt` of all ranks say
partition stages 1 and 2: one flat vector per param group
slices    stage 3: each parameter cut on its own
columns   one model-parallel rank's tensors, put together from the above
read      the whole checkpoint
"""

from __future__ import annotations

from zerotools.formats.deepspeed.read import read

__all__ = ["read"]
