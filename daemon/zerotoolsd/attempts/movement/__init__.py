"""Whether an attempt that runs still moves.

phases       what it is at, and since when nothing of it has moved
standstill   since when it takes no step, and whom its ranks wait for
"""
