"""Statistics of the values of a checkpoint's tensors, in one pass over its data.

checkpoint_statistics  the statistics of each tensor, and the tensors that cannot be read

Of `ops` it imports `execution` and `quantised`.
"""
