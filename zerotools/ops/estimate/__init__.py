"""Predict the memory of a training, and find a setting that fits.

parameter_shapes   the parameters of a model, from a name, a size, config.json or a checkpoint
model_families     the sizes of a model's layers, from its config.json
state_memory       bytes of weights, gradients and optimizer state on each rank
activation_memory  bytes of activations on each rank
rank_memory        all memory of one rank, and its peak
offload_table      the memory of each ZeRO stage with each kind of offload
fit_search         the changes that make a training fit
recommendation     the setting that is recommended, and the reason
gpu_cards          the memory of GPU cards by name
"""
