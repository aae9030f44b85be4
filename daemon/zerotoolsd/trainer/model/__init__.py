"""The model: its shape, what its parameters begin with, and its loss.

blueprint                     on the meta device: shapes, no bytes
building, initial, weights    what the shards begin with: the seed, or safetensors
lora                          adapters by peft
objective                     the loss
"""
