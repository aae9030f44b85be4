"""Small checkpoints by real DeepSpeed on the CPU, with the truth taken from the live engine."""
