"""The contents of DeepSpeed's files: their names, their trees and keys, as checked values.

Every key and file name that DeepSpeed writes is spelled only here. Nothing here depends on a target
world size. Imports only `core`, `io` and the modules of this package; every other package may
import it.

file_names       the grammar of file names in a tag directory, and the names of new files
signs            the names that identify a checkpoint, and the difference between the two formats
tag              the tag directory of a path
fields           typed access to the dicts of a file
model_tree       the keys of a `*_model_states.pt`, their order, and a new tree of them
model_states     a `*_model_states.pt`, checked
optimizer_tree   the keys of a `*_optim_states.pt`, their nesting, and new trees of them
optim_states     a `*_optim_states.pt`, checked: masters, optimizer state, param groups
loss_scaler      the scaler object in it
flat_partition   one rank's partition of a flat buffer in its file
ds_config        the ZeRO settings of a DeepSpeed configuration or of flags
experts          the experts of each data-parallel rank, and their names
stacked_experts  AutoEP's experts, one tensor for all of a layer
autoep_layers    the record of AutoEP's layers
tensor_parallel  how tensor-parallel ranks share each parameter
"""
