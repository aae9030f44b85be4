"""Features of the kernel that tests use: memory limits, and the NUMA nodes of pages."""
