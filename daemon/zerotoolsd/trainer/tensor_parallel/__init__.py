"""Layers that several ranks compute together, each with a part of their weights.

layer_cuts     what transformers' plan of a model says: which layers are cut, and how
cut_layers     those layers, computing with a part
folded         the same, of all ranks in one process
whole_values   what goes between ranks, in the forward pass and in the backward pass
"""
