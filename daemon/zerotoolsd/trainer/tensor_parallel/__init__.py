"""Layers that several ranks compute together. Each rank has a part of the weights.

plan_layer_cuts    plans how layers are split, according to transformers' plan
parallel_layers    the split layers, and the communication between the ranks
"""
