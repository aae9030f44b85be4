"""The reports of a rank: log lines, datagrams, MFU, and the reason of exhausted GPU memory.

It may import every package below the engines: `evaluation`, `checkpoints`, `engine`, `model`,
`rank`.
"""
