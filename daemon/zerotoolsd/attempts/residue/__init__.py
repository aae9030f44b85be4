"""Memory that stays on a GPU after an attempt has ended: it is seen, attributed, said, and the GPU
stays with its lease until it is free.

memory_left     what of a GPU's memory is left of an attempt: pure
device_files    who has a GPU's device file open
attribution     whose it is, in words
residue_watch   the loop: looks after each end, and until the memory is back
"""
