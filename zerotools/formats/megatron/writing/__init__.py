"""A torch_dist checkpoint out of a run that any program saved.

single_tensors       whatever is stacked, one tensor for each layer and each expert
norm_names           the names of norms, in Transformer Engine's layers and in Megatron's own
stored_places        which key each tensor belongs to, and where it lies there
resumable_optimizer  masters, moments, param groups and the step, as Megatron resumes from them
model_arguments      the arguments of Megatron's script for a model of config.json
extra_states         the empty states that layers ask for
common_state         common.pt and metadata.json
stored_files         data files and `.metadata`
lay_out              a checkpoint of any format -> Target
"""
