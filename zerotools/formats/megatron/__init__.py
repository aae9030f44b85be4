"""Megatron-Core checkpoints: recognised and described, not read.

    RUN/latest_checkpointed_iteration.txt       an iteration, or the word "release"
    RUN/iter_0000100/, RUN/release/
      .metadata, __R_W.distcp, common.pt, metadata.json       torch_dist, which is a torch DCP
      metadata.json, common.pt, KEY/.zarray                   zarr, of before 0.16
      .metadata                                               torch_dcp, fsdp_dtensor
      mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, distrib_optim.pt   legacy rank files

Names, layers and shards are Megatron's own, so that no other program could load what would be made
of them: `Origin.refusal` says so.

file_names  the names by which a directory is known
origin      iteration and parallel sizes, as common.pt and its like have them
torch_dist  what is below one `.metadata`
rank_files  the files of ranks
read        whichever of these it is -> Checkpoint
format      these as a line of the table of formats
"""
