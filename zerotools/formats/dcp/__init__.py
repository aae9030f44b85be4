"""torch.distributed.checkpoint (DCP): what FSDP and `torch.distributed.checkpoint.save` write.

metadata       `.metadata`, a pickle, as checked values
directories    which DCP directories are one checkpoint
items          the stretches of `.distcp` files: where a tensor's bytes lie in each
names          DCP's flat keys and ours
read           directory -> Checkpoint
shards         which rank holds what, as torch would save it
write_metadata checked values -> `.metadata`
rank_files     the files of all ranks of a flat state dict
lay_out        Checkpoint -> Target, for another number of ranks
styles         how torch, accelerate and torchtitan name model and optimizer
param_groups   the param groups that torch's optimizer would have
lay_out_training  Checkpoint of any format, TrainingState -> Target
training       what the files say of the run, in words that all formats share
jobcheckpoint  the directory that a zerotools job keeps its DCP in
"""

from zerotools.formats.dcp.reading.read import read
from zerotools.formats.dcp.reading.training_state import training_of
from zerotools.formats.dcp.writing.lay_out import lay_out
from zerotools.formats.dcp.writing.lay_out_other_format import lay_out_training

__all__ = ["lay_out", "lay_out_training", "read", "training_of"]
