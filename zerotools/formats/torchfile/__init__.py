"""Files of `torch.save`: a state dict in one file, in Hugging Face `.bin` shards, or one per rank.

names          which files of a directory belong together
tree           what was saved, taken apart: weights, optimizer, the rest
kinds          what a file is that holds no weights
optimizer      whose state is number 3 of a torch optimizer
values         a value as a tensor, or one rank's pieces of it
dtensor        FSDP2's DTensor: pieces from mesh and placements
shardedtensor  FSDP1's ShardedTensor: pieces from their own metadata
merge          the same tensor in the files of all ranks
single         one file -> Checkpoint
shards         Hugging Face shards -> Checkpoint
ranks          the files of all ranks -> Checkpoint
read           which of these a path is
training       what the files say of the run, in words that all formats share
onefile        the layout of one archive, tensors and known numbers
lay_out        Checkpoint -> Target, which `torch.load` and `from_pretrained` read
lay_out_training   one file with the optimizer's state, from which a plain torch run goes on
"""
