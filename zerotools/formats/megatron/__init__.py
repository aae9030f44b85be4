"""Megatron-Core checkpoints: read as one model from any ranks and stages; torch_dist is written,
too.

    RUN/latest_checkpointed_iteration.txt       an iteration, or the word "release"
    RUN/latest_train_state.pt                   the same of Megatron-Bridge
    RUN/iter_0000100/, RUN/release/
      .metadata, __R_W.distcp, common.pt, metadata.json       torch_dist, which is a torch DCP
      metadata.json, common.pt, KEY/.zarray                   zarr, of before 0.16: not read
      .metadata                                               torch_dcp, fsdp_dtensor
      mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, distrib_optim.pt   legacy rank files

Tensors have the names that Megatron-Core has for them in a model on one rank, one for each layer
and each expert: `decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight`. Norms have
different names in the model's layers and in Transformer Engine's; the files' names are kept.

file_names      the names that identify a directory
origin          iteration, parallel sizes and arguments, from common.pt and similar files
bridge_config   the same from Megatron-Bridge's files
native          the values that `training_of` needs
tensor_names    the names in the model for the keys of torch_dist
stacked         one layer or one expert out of tensors that are stored together
torch_dist      the tensors below one `.metadata`
flat_buckets    masters and moments out of the distributed optimizer's buffers
fsdp_dtensor    the format of Megatron-FSDP
lost_names      layers and experts that ranks saved under one name
groups          param groups, and the parameters of each
ranks           legacy files of ranks as one Checkpoint
writing         torch_dist out of a checkpoint of any format
training_state  the state of the run besides its tensors
read            any of these -> Checkpoint
format          these as a line of the table of formats
"""
