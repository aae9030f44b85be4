"""What the kernel is asked to do for a test: limits of memory, and where pages lie."""
