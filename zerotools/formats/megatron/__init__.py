"""Megatron-Core checkpoints: read as one model, whatever ranks and stages it was saved by;
torch_dist is written, too.

    RUN/latest_checkpointed_iteration.txt       an iteration, or the word "release"
    RUN/latest_train_state.pt                   the same of Megatron-Bridge
    RUN/iter_0000100/, RUN/release/
      .metadata, __R_W.distcp, common.pt, metadata.json       torch_dist, which is a torch DCP
      metadata.json, common.pt, KEY/.zarray                   zarr, of before 0.16: not read
      .metadata                                               torch_dcp, fsdp_dtensor
      mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, distrib_optim.pt   legacy rank files

Tensors have the names that Megatron-Core has for them in a model on one rank, one for each layer
and each expert: `decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight`. Of the norms,
which the model's layers and Transformer Engine's call otherwise, the names are those of the files.

file_names      the names by which a directory is known
origin          iteration, parallel sizes and arguments, as common.pt and its like have them
bridge_config   the same from what Megatron-Bridge writes
native          what is kept for `training_of`
tensor_names    what the keys of torch_dist are to the model
stacked         one layer and one expert out of what is stored together
torch_dist      what is below one `.metadata`
flat_buckets    masters and moments out of the distributed optimizer's buffers
fsdp_dtensor    what Megatron-FSDP saves
lost_names      layers and experts that ranks saved under one name
groups          param groups, and which parameters each has
ranks           legacy files of ranks as one Checkpoint
writing         torch_dist out of a checkpoint of any format
training_state  what belongs to the run beside its tensors
read            whichever of these it is -> Checkpoint
format          these as a line of the table of formats
"""
