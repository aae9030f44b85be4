"""The model: its shapes, its shards on the ranks, and the initial values of its parameters.

meta_model               the model on the meta device: shapes without bytes
add_lora_adapters        adds peft's LoRA adapters to a frozen model
nf4_linear               frozen layers with weights in 4 bits
sharding                 FSDP2: the mesh, the sharded model, the memory of the shards
optimizer_groups         which parameters have weight decay, and which parameters Muon updates
keep_fp32                which parameters stay in fp32 in a 16-bit model
attention_choice         chooses the attention implementation and the GPU kernel
segment_attention        attention over packed sequences, one segment at a time
initialise_from_seed     computes initial values from the seed
match_pretrained         finds the tensors of a Hugging Face directory that fill each parameter
hub_tensors              reads tensors in the safetensors files of a Hugging Face directory
trace_weight_conversion  tensors that record how transformers' conversions move them
fill_shards              reads the part of each tensor that a rank keeps
rng_state                the random number generators of a rank
predict_state_memory     the predicted memory of a rank
tiny_model               a small model with the same layers, for tests before the start

These modules may import `allocate_tensors`, `rank` and `tensor_parallel`.
"""
