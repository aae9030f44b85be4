"""Legacy rank files: the tensors of each rank of a model, joined.

rank_layout     the expected rank files
saved_rank      one rank's file of the model
rank_checks     files that are missing, or of another save
rank_cuts       the sharing of each weight by tensor-parallel ranks
rank_optimizer  the state of one rank's optimizer
whole_model     the tensors of all ranks as one
rank_names      the weights of a rank by their names in the whole model
rank_files      the files of all ranks as one Checkpoint
"""
