"""Optimizers for weights of which a rank has only rows; torch's own take each tensor to be
complete."""
