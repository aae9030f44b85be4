"""The progress of the ranks of an attempt, and the action if they make none.

rank_phases         the phases of a rank, and their deadlines without progress
shared_heartbeat    shared memory in which each rank reports its phase
rank_activity       the state in the kernel of a rank that reports nothing
stall_detector      how long each rank has been quiet, and when that is a stall
straggler           the straggler rank, and a stall in one sentence
script_heartbeats   the same for programs of users, from their reports
stacks              the stacks of all ranks, for the log
heartbeats          the phases of all ranks, once a second
stalls              the action on ranks that make no progress
"""
