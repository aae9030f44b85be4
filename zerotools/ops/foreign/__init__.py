"""Going on from a checkpoint of another program: what it has for a job, and what it does not say.

run                 one checkpoint, also where weights and optimizer lie in files of their own
numbered            optimizer state by number, and the names that the checkpoint itself proves
matching_masters    what proves them: each weight is the cast of its master
flat_state          state of several parameters in one flat tensor
numbering           the names of parameters that an optimizer has by number
naming              the same, by the order that --order says
names               its tensors under the names of the job's model
check, notes        what the job cannot go on from; what differs, and what is not known

No numpy, except where masters are compared: the ranks of a job read it too, and load the tensors
themselves.
"""
