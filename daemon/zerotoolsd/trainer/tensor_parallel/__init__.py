"""Layers that several ranks compute together, each with a part of their weights.

layer_cuts     the cut layers of a model, from transformers' plan
cut_layers     those layers, computing with a part
folded         the same, of all ranks in one process
whole_values   the communication between ranks, in the forward pass and in the backward pass
"""
