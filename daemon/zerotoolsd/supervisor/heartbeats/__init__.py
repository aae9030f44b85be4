"""Watches the progress of an attempt's ranks, and acts if the ranks make no progress.

stall_limits       the phases of a rank, and their deadlines without progress
shared_heartbeat   shared memory in which each rank reports its phase
rank_heartbeats    reads the phases of all ranks once a second, also those of users' programs
stall_detector     decides that ranks make no progress, and names the rank that others wait for
handle_stall       reports a stall, writes the stacks of ranks to the log, ends the ranks
"""
