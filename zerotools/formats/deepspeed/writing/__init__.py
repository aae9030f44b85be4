"""From a logical state to DeepSpeed's files: the target layout, then one module per kind of output.

Imports `schema`, `partitioning` and `logical`.

lay_out               a DeepSpeed checkpoint for another world size or stage
lay_out_other_format  a checkpoint of another format for DeepSpeed
checks                what cannot be laid out again, and whether the bytes say so too
target_layout         stage, ranks, order and alignment: what was asked for, else as in the source
zero12                the files of stages 1 and 2 and of BF16_Optimizer
zero3                 the files of stage 3
sub_groups            which parameters share a sub-group of stage 3; begins with a drawn example
partitions            flat buffers of the output, and the state beside them
pt_files              one `.pt` to be written, with what it carries over from the source
tag_sidecars          the files around the tag
job_files             the files of a zerotools job around the tag
thin                  what stays without the state of the optimizer
notes                 what the user should know of the output
"""
