"""A checkpoint before it is partitioned: one model-parallel rank's state, for any world size.

Imports `schema` and `partitioning`.

logical_state      that state, made from files that were read
change_stage       the same for another ZeRO stage
from_other_format  the same, made from a checkpoint of another format
param_groups       its param groups, and the state that DeepSpeed keeps for each
hyperparameters    options of param groups that the files do not have, from a configuration
"""
