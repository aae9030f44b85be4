"""Whether an attempt that runs still moves.

phases       what it is at, and since when nothing of it has moved
start_history  how long the phases before the first step usually take here
standstill   since when it takes no step, and whom its ranks wait for
"""
