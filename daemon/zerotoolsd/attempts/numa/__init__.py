"""On which processors the ranks of an attempt run, and from which memory node they have memory.

core_shares      the cores of a node, cut among those that share it; pure
rank_bindings    what each rank keeps to, of the GPUs and the topology of the machine; pure
placer           with the machine as it is now
shown_binding    what the supervisor says became of it, as clients get it
"""
