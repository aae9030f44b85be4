"""Universal checkpoints: one directory per parameter, saved for no particular world size.

May import every other package of `deepspeed`; none imports it.

read             directory -> Checkpoint
param_files      the files of each parameter, and the lost ones
optimizer_state  the contents of `zero/optimizer_state.pt`
native           the values that only the format's own writer needs
masters          a comparison of masters with the weights in the model file
training_state   the state of the run, in words that all formats share
lay_out          any checkpoint -> Target
contents         its contents, checked against what DeepSpeed's loaders accept
trees            the trees of its files
thin             a checkpoint without the optimizer's state
notes            limits of its loaders
format           these as a line of the table of formats
"""
