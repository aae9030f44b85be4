"""Floor 1: what the machine has and uses: GPUs through NVML, host memory, stall pressure."""
