"""Universal checkpoints: one directory per parameter, saved for no particular world size.

May import every other room of `deepspeed`; none imports it.

read             directory -> Checkpoint
param_files      the files of each parameter, and which of them are lost
optimizer_state  what `zero/optimizer_state.pt` says
native           what is kept of a checkpoint for its own writer
masters          whether masters are those of the weights in the model file
training_state   what the files say of the run, in words that all formats share
lay_out          any checkpoint -> Target
contents         what goes into it, checked against what DeepSpeed's loaders take
trees            what its files hold
thin             what stays without the state of the optimizer
notes            what its loaders do not do
format           these as a line of the table of formats
"""
