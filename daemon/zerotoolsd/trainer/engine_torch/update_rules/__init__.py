"""Optimizers for weights split by rows among ranks; torch's optimizers expect complete tensors."""
