"""The container of torch.distributed.checkpoint: `.metadata`, and the items of `.distcp` files.

Reads and writes them as checked values, for every format that uses the container. What the keys
mean is said in `zerotools.formats`. Imports `core` and `io` only, and neither torch nor numpy.
"""
