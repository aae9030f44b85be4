"""What a file of `torch.save` holds: file names, state dicts, and the tensor pieces of one rank.

Imports `core`, `io` and its own modules only.
"""
