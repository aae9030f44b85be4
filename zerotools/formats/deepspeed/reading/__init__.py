"""From a save directory to a Checkpoint: find the files of one save, check them, join the ranks.

Imports `schema` and `partitioning`.

read              the whole checkpoint
saves             which files of a tag that was saved to again belong together
stand_in          the names and shapes of another checkpoint of the run, where they are lost
sequence_ranks    files of ranks that share a sequence, whose names have another mp_rank
mp_rank_files     the files of one model-parallel rank; which are missing or left over
listed_parameters  the parameters of flat buffers, where the model file does not list them
consistency       whether files say of themselves that they are of one save
one_save          which files the other checks show to be of one save
missing_files     whether the files of a pipeline's layers, and of experts, are all there
merge             the model-parallel ranks merged into whole tensors
repeated_tensors  what is in several files and read from one, compared
numbered_state    the optimizer state of a run without ZeRO, which has no names
origin            where the checkpoint comes from, and what `inspect` shows of it
training_state    what the files say of the run, in words that all formats share
"""
