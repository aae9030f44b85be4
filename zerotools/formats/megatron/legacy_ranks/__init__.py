"""Legacy rank files: one or two torch files per rank, merged into one Checkpoint.

read_rank_files  the files of all ranks -> Checkpoint; missing files, files of another save
rank_positions   the rank files that a model needs; one opened rank file
rank_optimizer   the optimizer state of one rank
merge_ranks      the tensors of all ranks, merged under their names in the whole model
"""
