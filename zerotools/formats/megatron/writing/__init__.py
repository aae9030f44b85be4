"""Make a torch_dist checkpoint from a run that any program saved.

one_tensor_per_layer  stacked tensors, split into one per layer and expert, with Megatron's names
resumable_optimizer   masters, moments, param groups and the step, as Megatron resumes from them
model_arguments       the arguments of Megatron's script for a model with a given config.json
torch_dist_files      data files, `.metadata`, common.pt and metadata.json
lay_out               a checkpoint of any format -> Target
"""
