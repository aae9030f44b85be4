"""Engine `torch`: FSDP2 over the ranks, torch's optimizers, checkpoints by DCP.

engine                      the engine that the loop calls, and one optimizer step
build_model_and_optimizer   makes the model and the optimizer, with memory and initial values
training_tensors            the tensors of a run, keyed by their names in a checkpoint
optimizer                   makes the optimizer and its state
adafactor, adamw8bit, muon  optimizers for weights that are split by rows among ranks
reduce_and_update           brings gradients to the optimizer, and updated weights to the model
master_weights              fp32 master weights in another memory: offload, and stage 1
save_and_load_shards        writes tensors to a checkpoint, and reads them
"""
