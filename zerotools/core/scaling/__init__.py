"""Tensors that are computed of others: which scales belong to which elements."""
