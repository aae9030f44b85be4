"""From a save directory to a Checkpoint: find the files of one save, check them, merge the ranks.

This package imports `schema` and `partitioning`.

read                         the whole checkpoint
files_of_save                the files of one save, if a tag directory has files of several saves
load_mp_rank                 the files of one model-parallel rank; missing and surplus files
merge_mp_ranks               the model-parallel ranks merged into whole tensors
check_same_save              checks that files are of one save, by the values recorded in them
missing_layers_and_experts   checks that all files of pipeline layers and experts exist
compare_copies               compares values that several files hold
read_optimizer_without_zero  the optimizer state of a run without ZeRO, which has no parameter names
training_state               save directory -> TrainingState and Origin
"""
