"""What DeepSpeed's files hold: their names, their trees and keys, as checked values.

Every key and file name that DeepSpeed writes is spelled here and nowhere else. Nothing here knows a
target world size. Imports `core`, `io` and its own modules only; every other room may import it.

file_names       the grammar of file names in a tag directory, and the names to be written
signs            the names by which a checkpoint is known, and what tells the two formats apart
tag              which tag directory a path means
fields           typed access to the dicts of a file
model_tree       the keys of a `*_model_states.pt`, their order, and a new tree of them
model_states     a `*_model_states.pt`, checked
optimizer_tree   the keys of a `*_optim_states.pt`, their nesting, and new trees of them
optim_states     a `*_optim_states.pt`, checked: masters, optimizer state, param groups
loss_scaler      the scaler object in it
flat_partition   one rank's partition of a flat buffer, as its file has it
ds_config        what a DeepSpeed configuration, or a flag, says of ZeRO
experts          which data-parallel rank has which experts, and their names
stacked_experts  AutoEP's experts, one tensor for all of a layer
autoep_layers    the record of AutoEP's layers
tensor_parallel  how tensor-parallel ranks share each parameter
"""
