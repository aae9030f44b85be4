"""Frozen linear layers that keep their weights in 4 bits, by bitsandbytes.

nf4_linear      such a layer
frozen_layers   which layers of a model become such
"""
