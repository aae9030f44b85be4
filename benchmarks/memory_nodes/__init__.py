"""What it is worth to run next to the memory, and next to the GPU: machines with several nodes.

bound_work    one process that copies, and takes an optimizer's step, where it is told to run
__main__      such processes in turn, near to their memory, far from it, and left to the kernel
"""
