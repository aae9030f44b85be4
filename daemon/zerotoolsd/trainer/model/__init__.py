"""The model: its shape, how it is cut among ranks, and what its parameters begin with.

meta_model, lora      on the meta device: shapes, no bytes; adapters by peft
sharding              the model, sharded by FSDP2
optimizer_groups      which parameters decay, and which are Muon's
fused_attention       which kernel of torch attends on a GPU
kept_fp32             what is computed with in fp32 among 16-bit weights
initial, weights      first values: from the seed, or from safetensors
box_reader            what a rank keeps of the tensors of any checkpoint
rng                   a rank's random number generators
memory_estimate       what the state of a rank will take

It may import `memory`, `rank` and `tensor_parallel`.
"""
