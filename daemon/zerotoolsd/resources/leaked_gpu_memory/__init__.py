"""Memory still used on a GPU after the end of an attempt. It is detected, attributed and reported,
and the GPU stays leased until it is free.

leaked_bytes   the part of a GPU's memory that an attempt left: pure
device_files   the processes that have a GPU's device file open
attribution    the owner of the memory, in words
leak_watch     the loop: checks after each end, until the memory is free
"""
