"""Engine `torch`: FSDP2 over the ranks, torch's optimizers, checkpoints by DCP.

engine, step                  what the loop drives, and one optimizer step
layout, memory, spill         what is kept, and where: device, host, disk
sharding                      the model, sharded
optimizer, adafactor          what updates the weights
gradients, partition          the way there and back, at stage 1 by rows
masters, courier              fp32 masters apart from the weights: offload, and stage 1
state, loading, writing       the tensors of a checkpoint (also checkedreader, finite)
"""
