"""DeepSpeed checkpoints: ZeRO stages 0 to 3 and BF16_Optimizer, of all versions of DeepSpeed.

schema                 the content of DeepSpeed's files: names, trees and keys, as checked values
partitioning           the position of each element of a parameter on the ranks
reading                save directory -> Checkpoint and TrainingState
mp_rank_logical_state  the state of one model-parallel rank without partitions, for any world size
change_stage           a logical state, converted to another ZeRO stage
foreign_param_groups   the param groups of a run that resumes in DeepSpeed
writing                logical state -> files; the source may have another world size or format
universal              universal checkpoints, one directory per parameter: read and written
format                 the `Format` of ZeRO checkpoints

A reader needs only schema, partitioning and reading. A writer needs mp_rank_logical_state and
writing too.
"""
