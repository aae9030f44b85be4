"""The contents of a `torch.save` file: file names, state dicts, and the tensor pieces of one rank.

Imports only `core`, `io` and its own modules.

file_names        the files of a directory that belong together
opened_file       an opened file, and the keys of its tensors
state_dict        a saved tree, split into weights, optimizer, and the rest
non_model_states  the kind of a file without weights
rank_states       one rank's state of another program, in a file of any name
param_numbers     the names of a torch optimizer's numbered parameters
training_keys     the keys of a training file that zerotools writes
tensor_values     a value as a tensor, or one rank's pieces of it
pieces            the part of a tensor in one file
dtensor           FSDP2's DTensor: pieces from mesh and placements
sharded_tensor    FSDP1's ShardedTensor: pieces from their own metadata
"""
