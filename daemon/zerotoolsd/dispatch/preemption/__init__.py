"""Running jobs save and end, so that others run or because memory runs out; they continue later.

choose_victims         which jobs yield to one of higher priority: pure
preempt_for_priority   asks them
preempt_for_memory     asks jobs to yield if memory runs out, and ends them if that is too late
savable                whether a job continues from its state if its attempt is asked to end
"""
