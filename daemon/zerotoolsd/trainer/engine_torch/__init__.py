"""Engine `torch`: FSDP2 over the ranks, torch's optimizers, checkpoints by DCP.

building                      the model and optimizer, with their memory and initial values
engine, step                  the engine that the loop drives, and one optimizer step
disk_check                    disk space, before anything is built
optimizer, update_rules        the updates of the weights
gradients, partition          from gradients to the optimizer and back, at stage 1 by rows
masters, copy_stream          fp32 masters apart from the weights: offload, and stage 1
state                         the tensors of a checkpoint
write_shards, load_shards     those tensors to and from disk (also checked_reader)
load_foreign                  those tensors from a checkpoint of another program
"""
