"""Quantised weights: find them by their payload and scales, dequantise them, and quantise.

quantised_weights     the quantised weights of a checkpoint, and their faults
quantisation_config   `quantization_config` of config.json
find_quantised        find quantised weights by names, dtypes and config
find_fp8_fp4_int8     payloads of 8 or 4 bits with scales: fp8, int8, MXFP8, MXFP4, NVFP4
bitsandbytes_weights  nf4, fp4 and int8 of bitsandbytes
dequantise            compute plain weights from quantised weights
quantise              make fp8 or MXFP8 weights from plain weights

Imports neither numpy nor another package of `ops`.
"""
