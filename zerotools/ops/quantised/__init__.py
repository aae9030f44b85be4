"""Quantised weights: the payload and scales of each weight, and casts in both directions.

    quantisation         the result: weights, their scales, faults
    quantisation_config  `quantization_config` of config.json, read and changed
    recognise            finds quantised weights by names, types and config
    eight_bits           fp8 and int8, scaled by blocks, groups, rows or as a whole; MXFP8
    four_bits            MXFP4 of gpt-oss and of compressed-tensors, NVFP4
    bits_and_bytes       nf4, fp4 and int8 of bitsandbytes
    dequantise           the same checkpoint with plain weights
    quantise             and with fp8 or MXFP8 weights

Imports `core`, `io` and `formats`, and no other package of `ops`; no numpy.
"""
