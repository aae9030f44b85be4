"""Features of the Linux kernel that tests use: memory limits, and the NUMA nodes of memory
pages.
"""
