"""The model: its shape, its sharding among ranks, and the initial values of its parameters.

meta_model, lora      on the meta device: shapes, no bytes; adapters by peft
sharding              the model, sharded by FSDP2
optimizer_groups      which parameters decay, and which are Muon's
fused_attention       which kernel of torch attends on a GPU
kept_fp32             what is computed with in fp32 among 16-bit weights
initial, weights      first values: from the seed, or from safetensors
box_reader            what a rank keeps of the tensors of any checkpoint
rng                   a rank's random number generators
memory_estimate       the predicted memory of a rank's state

It may import `memory`, `rank` and `tensor_parallel`.
"""
