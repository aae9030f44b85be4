"""What a file of `torch.save` holds: file names, state dicts, and the tensor pieces of one rank.

Imports `core`, `io` and its own modules only.

file_names        which files of a directory belong together
opened_file       an opened file, and the keys of its tensors
state_dict        what was saved, taken apart: weights, optimizer, the rest
non_model_states  what a file is that holds no weights
rank_states       what one rank of another program holds, in a file of any name
param_numbers     which name a torch optimizer's parameter number 3 has
training_keys     the keys of a training file that zerotools writes
tensor_values     a value as a tensor, or one rank's pieces of it
pieces            what one file holds of a tensor
dtensor           FSDP2's DTensor: pieces from mesh and placements
sharded_tensor    FSDP1's ShardedTensor: pieces from their own metadata
"""
