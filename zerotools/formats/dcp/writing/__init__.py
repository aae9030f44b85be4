"""From a Checkpoint of any format to the files of a DCP, one per rank, as torch would save them.

Imports `directories`, `io.distcp` and `runs`.

lay_out               a DCP for another world size
lay_out_job           a checkpoint for a job of zerotools to resume from
lay_out_other_format  a DCP of a run that another program saved
naming_styles         how torch, accelerate and torchtitan name model and optimizer
param_groups          the param groups that torch's optimizer would have
rank_files            the files of all ranks of a flat state dict
save_plan             the chunks that each rank saves
thin                  a DCP without its optimizers
"""
