"""Watches the progress of an attempt's ranks, and acts if the ranks make no progress.

stall_limits       defines the phases of a rank, and the longest time without progress in each
shared_heartbeat   passes the phase of each rank to the supervisor through shared memory
rank_heartbeats    reads the phases of all ranks once a second, also of users' programs
stall_detector     decides whether ranks make progress; names the rank that other ranks wait for
handle_stall       reports a stall, writes the stacks of ranks to the log, ends the ranks
"""
