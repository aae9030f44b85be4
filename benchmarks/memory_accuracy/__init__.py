"""Predicted memory against what is counted.

__main__     activations of every architecture, operation by operation
processes    whole jobs on the CPU, beside the most memory of their processes
ranks        the same of one rank and of two in bf16, where activations take next to nothing
"""
