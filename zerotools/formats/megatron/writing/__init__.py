"""A torch_dist checkpoint out of a run that any program saved.

single_tensors       stacked tensors, split into one for each layer and each expert
norm_names           the names of norms, in Transformer Engine's layers and in Megatron's own
stored_places        the key of each tensor, and its position there
resumable_optimizer  masters, moments, param groups and the step, as Megatron resumes from them
model_arguments      the arguments of Megatron's script for a model of config.json
extra_states         the empty states that layers request
common_state         common.pt and metadata.json
stored_files         data files and `.metadata`
lay_out              a checkpoint of any format -> Target
"""
