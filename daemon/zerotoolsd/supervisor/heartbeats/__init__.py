"""Whether the ranks of an attempt get on, and what is done about those that do not.

rank_phases   what a rank may be at, and how long it may be at it without getting any further
pulse         memory in which each rank says what it is at
rank_activity what the kernel says of a rank that says nothing
attention     how long each rank has said nothing new; when that is a stall
telling       whom the others wait for, and a stall in one sentence
told          the same of programs of users, from what they report
stacks        the stacks of all ranks, for the log
heartbeats    what all ranks are at, once a second
stalls        what is done about ranks that do not get on
"""
