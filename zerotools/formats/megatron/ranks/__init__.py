"""Legacy rank files: what each rank of a model held, put together.

rank_layout     which rank files there should be
saved_rank      one rank's file of the model
rank_checks     files that are missing, or of another save
rank_cuts       how tensor-parallel ranks share each weight
rank_optimizer  what one rank's optimizer keeps
whole_model     the tensors of all ranks as one
rank_names      the weights of a rank by their names in the whole model
rank_files      the files of all ranks as one Checkpoint
"""
