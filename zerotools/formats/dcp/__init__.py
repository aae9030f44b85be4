"""torch.distributed.checkpoint (DCP): what FSDP and `torch.distributed.checkpoint.save` write.

metadata       `.metadata`, a pickle, as checked values
directories    which DCP directories are one checkpoint
items          the stretches of `.distcp` files: where a tensor's bytes lie in each
names          DCP's flat keys and ours
read           directory -> Checkpoint
shards         which rank holds what, as torch would save it
write_metadata checked values -> `.metadata`
lay_out        Checkpoint -> Target
training       what the files say of the run, in words that all formats share
jobcheckpoint  the directory that a zerotools job keeps its DCP in
"""

from zerotools.formats.dcp.lay_out import lay_out
from zerotools.formats.dcp.read import read
from zerotools.formats.dcp.training import training_of

__all__ = ["lay_out", "read", "training_of"]
