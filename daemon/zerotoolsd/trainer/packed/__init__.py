"""Frozen linear layers that keep their weights in 4 bits, by bitsandbytes.

packed_linear   such a layer
packing         which layers of a model become such
"""
