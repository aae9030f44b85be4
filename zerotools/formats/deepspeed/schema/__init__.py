"""The content of DeepSpeed's files: their names, trees and keys, as checked values.

DeepSpeed's keys and file names are written out only in this package. It does not depend on a target
world size. It imports only `core`, `io` and its own modules; every other package of the format may
import it.

tag_file_names              file names in a tag directory; those that identify a checkpoint
find_tag                    the tag directory of a path
typed_fields                typed access to the dicts of a file
state_dict_keys             keys of `*_model_states.pt` and `*_optim_states.pt`; new state dicts
model_states                a `*_model_states.pt`, checked
optim_states                a `*_optim_states.pt`, checked: masters, optimizer state, param groups
loss_scaler                 the loss scaler in a `*_optim_states.pt`
ds_config                   keys of a DeepSpeed configuration: ZeRO, dtypes, optimizer
expert_parallel             experts on each data-parallel rank, and AutoEP's stacked experts
read_tensor_sharding_rules  how tensor-parallel ranks share each parameter
"""
