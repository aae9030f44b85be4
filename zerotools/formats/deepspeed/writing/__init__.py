"""Make DeepSpeed's files from a logical state: choose a target layout, then plan each kind of file
in a module of its own.

This package imports `schema`, `partitioning`, `mp_rank_logical_state`, `change_stage` and
`foreign_param_groups`.

lay_out_resharded     a DeepSpeed checkpoint for another world size or stage -> Target
lay_out_converted     a checkpoint of another format as DeepSpeed files -> Target
source_checks         checks that a source can be laid out again, and that masters match weights
target_layout         stage, ranks, order and alignment: as requested, else as in the source
zero12                the files of stages 1 and 2 and of BF16_Optimizer
zero3                 the files of stage 3
flat_buffers          flat buffers of the output, and the state next to them
plan_pt_file          one new `.pt` file, with bytes that are copied from the source
thin                  DeepSpeed files without optimizer state
notes_for_user        notes for the user on the output
"""
