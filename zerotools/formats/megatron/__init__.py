"""Megatron-Core checkpoints. Files of any number of ranks and stages are read as one model;
torch_dist can be written too.

    RUN/latest_checkpointed_iteration.txt       an iteration, or the word "release"
    RUN/latest_train_state.pt                   the iteration, in a run of Megatron-Bridge
    RUN/iter_0000100/, RUN/release/
      .metadata, __R_W.distcp, common.pt, metadata.json       torch_dist, which is a torch DCP
      metadata.json, common.pt, KEY/.zarray                   zarr, before 0.16: not read
      .metadata                                               torch_dcp, fsdp_dtensor
      mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, distrib_optim.pt   legacy rank files

Tensors get the names that they have in a Megatron-Core model on one rank, with one name for each
layer and each expert: `decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight`. The names
of norms differ between Megatron's own layers and Transformer Engine's layers; they stay as in the
files.

file_names            file and directory names that identify a Megatron checkpoint
bridge_config         the same values, from Megatron-Bridge's files
torch_dist_keys       the model's tensor name for each torch_dist key
unstack_tensors       tensors of one layer or expert, as parts of tensors that are stored together
tensor_parallel_cuts  how tensor-parallel ranks share each weight
flat_buckets          masters and moments from the flat buffers of the distributed optimizer
read_fsdp_dtensor     fsdp_dtensor directory (Megatron-FSDP) -> Checkpoint
legacy_ranks          legacy rank files -> Checkpoint
read                  a checkpoint of any of these kinds -> Checkpoint
training_state        a checkpoint of any of these kinds -> TrainingState, arguments, param groups
writing               a checkpoint of any format -> torch_dist
format                the `Format` of Megatron checkpoints
"""
