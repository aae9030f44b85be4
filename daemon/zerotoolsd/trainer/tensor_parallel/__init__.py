"""Layers that several ranks compute together.

Each rank has a part of the weights.

plan_layer_cuts    which layers are split, and how, by transformers' plan
parallel_layers    the split layers, and the communication between the ranks
"""
