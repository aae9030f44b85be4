"""Files of `torch.save`: a state dict in one file, in Hugging Face `.bin` shards, or in one file
per rank.

group_files_by_name    the torch files of a directory that form one checkpoint
open_torch_file        one opened file, and the keys of its tensors
sort_state_dict        the tensors of a saved tree: weights, optimizer and others
sharded_tensors        the part of a tensor in one file: DTensor (FSDP2), ShardedTensor (FSDP1)
refuse_non_model       errors for files that do not hold a whole model
merge_rank_files       one file per rank -> Checkpoint
read                   one file, `.bin` shards or rank files -> Checkpoint
training_state         torch files -> TrainingState
lay_out                a training file for plain torch, or a directory of `pytorch_model*.bin`
thin                   torch files without their optimizer state
format                 the `Format` of torch files
"""
