"""`zerotools diff` against reading both checkpoints."""
