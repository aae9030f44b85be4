"""Universal checkpoints: one directory per parameter, for any world size.

This package may import every other package of `deepspeed`; no other package imports this one.

read                     directory -> Checkpoint; files of each parameter, and lost files
optimizer_state          the content of `zero/optimizer_state.pt`
kept_for_writer          values that the reader stores for the writer
training_state           directory -> TrainingState
loadable_contents        the trees of the files, checked against what DeepSpeed's loaders accept
lay_out                  any checkpoint -> Target
thin                     a universal checkpoint without optimizer state
format                   the `Format` of universal checkpoints
"""
