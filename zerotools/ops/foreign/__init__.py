"""Continuing from a checkpoint of another program: the values for a job, and missing ones.

run                 one checkpoint, also with weights and optimizer in separate files
numbered            optimizer state by number, and the names that the checkpoint itself proves
matching_masters    the proof of names: each weight is the cast of its master
flat_state          state of several parameters in one flat tensor
numbering           the names of parameters that an optimizer has by number
naming              the same, by the order that --order says
names               its tensors under the names of the job's model
check, notes        reasons to refuse it; differences, and unknown values

No numpy, except to compare masters: the ranks of a job read it too, and load the tensors
themselves.
"""
