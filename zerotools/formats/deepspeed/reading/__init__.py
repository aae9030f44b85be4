"""From a save directory to a Checkpoint: find the files of one save, check them, join the ranks.

Imports `schema` and `partitioning`.

read              the whole checkpoint
saves             the files of one save, in a tag that was saved to twice
stand_in          names and shapes from another checkpoint of the run, if they are lost
sequence_ranks    files of ranks that share a sequence; their names have another mp_rank
mp_rank_files     the files of one model-parallel rank; missing and surplus files
listed_parameters  the parameters of flat buffers, if the model file does not list them
consistency       checks by the files' own records that they are of one save
one_save          the files of one save, as the other checks show
missing_files     checks that all files of a pipeline's layers, and of experts, exist
merge             the model-parallel ranks merged into whole tensors
repeated_tensors  values that several files have and one is read from, compared
numbered_state    the optimizer state of a run without ZeRO, without names
origin            the origin of the checkpoint, as `inspect` shows it
training_state    the state of the run, in words that all formats share
"""
