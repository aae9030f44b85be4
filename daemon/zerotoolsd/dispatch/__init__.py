"""The dispatcher: its loop decides what starts, yields and is removed. Only it changes jobs.

dispatcher           the loop, and the parts that it is made of
scheduling_loop      which waiting jobs start now, on which resources
elastic_growth       running elastic jobs grow into free resources
host_memory_use      the current host memory, and its use by running jobs
preemption           running jobs yield to others, or because memory runs out
memory_guard         acts before the memory of the host or of a GPU is used up
priority_classes     the priorities that users may give
last_uploads         uploads the last checkpoint if no supervisor has done it
cleaning             removes ended jobs
"""
