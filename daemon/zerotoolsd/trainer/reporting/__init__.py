"""What a rank reports: log lines, datagrams, MFU, and why a GPU ran out of memory.

It may import every room below the engines: `evaluation`, `checkpoints`, `engine`, `model`, `rank`.
"""
