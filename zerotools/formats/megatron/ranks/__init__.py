"""Legacy rank files: what each rank of a model held, put together.

rank_layout     which rank files there should be
rank_cuts       how tensor-parallel ranks share each weight
rank_optimizer  what one rank's optimizer keeps
rank_files      the files of all ranks as one Checkpoint
"""
