"""A checkpoint before it is partitioned: one model-parallel rank's state, whatever the world size.

Imports `schema` and `partitioning`.

logical_state      that state, and how it is made of what was read
change_stage       the same for another ZeRO stage
from_other_format  the same, made of a checkpoint of another format
param_groups       its param groups, and the state that DeepSpeed keeps for each
hyperparameters    options of param groups that the files do not have, from a configuration
"""
