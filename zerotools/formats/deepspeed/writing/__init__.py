"""From a logical state to DeepSpeed's files: the target layout, then one module per kind of output.

Imports `schema`, `partitioning` and `logical`.

lay_out               a DeepSpeed checkpoint for another world size or stage
lay_out_other_format  a checkpoint of another format for DeepSpeed
checks                limits of a new layout, and a comparison with the bytes
target_layout         stage, ranks, order and alignment: as requested, else as in the source
zero12                the files of stages 1 and 2 and of BF16_Optimizer
zero3                 the files of stage 3
sub_groups            the parameters of each sub-group of stage 3; begins with a drawn example
partitions            flat buffers of the output, and the state next to them
pt_files              one new `.pt`, with the bytes that it carries over from the source
tag_sidecars          the files around the tag
job_files             the files of a zerotools job around the tag
thin                  the files without the optimizer's state
notes                 notes for the user on the output
"""
