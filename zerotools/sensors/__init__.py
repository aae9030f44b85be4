"""Layer 1: the machine and its use: GPUs through NVML, host memory, stall pressure."""
