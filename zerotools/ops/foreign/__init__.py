"""Going on from a checkpoint of another program: what it has for a job, and what it does not say.

run                 one checkpoint, also where weights and optimizer lie in files of their own
numbering           the names of parameters that an optimizer has by number
naming              the same, by the order that --order says
names               its tensors under the names of the job's model
check, notes        what the job cannot go on from; what differs, and what is not known

No numpy: the ranks of a job read it too, and load the tensors themselves.
"""
