"""The processors and memory nodes of an attempt's ranks.

core_split        the cores of a node, divided among the ranks that share it; pure
choose_bindings   the binding of each rank, from GPUs and topology; pure
placer            the bindings on the machine as it is now
binding_view      the binding that the supervisor reports, for clients
"""
